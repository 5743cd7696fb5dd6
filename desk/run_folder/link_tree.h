// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_RUN_FOLDER_LINK_TREE_H_
#define CAPSTAN_DESK_RUN_FOLDER_LINK_TREE_H_

#include <string>

#include "absl/status/status.h"

namespace capstan {

// Makes the folder `to`, and those above it, with hard links to the files of
// `from`, or copies on another file system: whatever is removed from the one
// stays in the other. The owner may write to the new folders.
absl::Status LinkTree(const std::string& from, const std::string& to);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_LINK_TREE_H_
