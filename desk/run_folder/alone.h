// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_RUN_FOLDER_ALONE_H_
#define CAPSTAN_DESK_RUN_FOLDER_ALONE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/launch/place.h"

namespace capstan {

// FAILED_PRECONDITION unless the command is the only process: the ranks of a
// launcher would each begin a run, or wait for each other.
absl::Status CheckAlone(absl::string_view command, const Place& place);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_ALONE_H_
