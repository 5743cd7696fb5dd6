// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PART_H_
#define CAPSTAN_PLUGINS_SDK_PART_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// An object that one plugin gets from another and the core doesn't use: the
// environment of a collector, say. Its interface derives from Part in a header
// of the plugin that uses it, which finds it by dynamic_cast. A config names a
// part in a field of type google.protobuf.Any of the user's config.
class Part {
 public:
  virtual ~Part();
};

// Creates the part whose config has the type `type` ("acme.maze.Config") from
// the serialized `config`. Finds its plugin where the trainer does. Fails if
// there is no such plugin, if it is refused or isn't a part, or with its own
// error (FieldOf). Call it from a plugin's Create.
absl::StatusOr<std::unique_ptr<Part>> CreatePart(const std::string& type,
                                                 absl::string_view config);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PART_H_
