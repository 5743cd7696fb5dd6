// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_RUN_FOLDER_CONFIG_FIELDS_H_
#define CAPSTAN_DESK_RUN_FOLDER_CONFIG_FIELDS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {

// The values of a config's fields by their paths, as --set has them:
// "optimizer" is "capstan.adamw", "optimizer.learning_rate" is "0.003". A field
// that is there several times has as many values, in order. Strings are without
// their quotes.
using FieldLists = std::map<std::string, std::vector<std::string>>;

// Reads what PrintConfig writes, which has a field a line, without opening the
// plugins that the config names: they may be gone. Lines of another form are
// passed over.
FieldLists FieldsOfConfig(absl::string_view text);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_CONFIG_FIELDS_H_
