// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PART_H_
#define CAPSTAN_PLUGINS_SDK_PART_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// An object that one plugin gets from another. Its interface derives from Part
// in a header of the plugin that uses it, which finds it by dynamic_cast. A
// config names a part in a google.protobuf.Any.
class Part {
 public:
  virtual ~Part();
};

// Creates the part with the config type `type` ("acme.maze.Config"), found as
// the trainer finds plugins. Fails if there is none, if it is refused or isn't
// a part, or with its own error (FieldOf). Call it from a plugin's Create.
absl::StatusOr<std::unique_ptr<Part>> CreatePart(const std::string& type,
                                                 absl::string_view config);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PART_H_
