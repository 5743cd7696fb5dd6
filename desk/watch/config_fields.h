// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_CONFIG_FIELDS_H_
#define CAPSTAN_DESK_WATCH_CONFIG_FIELDS_H_

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// The fields of a run's config.pbtxt by the path that --set takes, as text:
// {"model": "capstan.llama", "model.hidden_size": "128"}. Values of a list are
// joined by ", ". Needs no plugins, unlike LoadConfig: the run's may be gone.
std::map<std::string, std::string> ConfigFields(absl::string_view config);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_CONFIG_FIELDS_H_
