// SPDX-License-Identifier: Apache-2.0
//
// What is meant by a name that a config's message doesn't have.
#ifndef CAPSTAN_HOST_CONFIG_FIELD_NAMES_H_
#define CAPSTAN_HOST_CONFIG_FIELD_NAMES_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "plugins/sdk/plugin.h"

namespace capstan {

// Another trainer's name for a field (peer_names in plugins/sdk/options.proto).
struct PeerName {
  std::string name;
  // What to write, if it isn't the same value under our name: "NF4 for true";
  // "leave it out: .." if nothing is.
  std::string instead;
};
std::vector<PeerName> PeerNames(const google::protobuf::FieldDescriptor& field);

struct UnknownName {
  std::string text;   // the error
  std::string field;  // of the same message, to write instead; "": not one
  // What its value is, as PeerName's, if it isn't the same.
  std::string instead = {};
};

// For `name`, which isn't a field of `type`. `config`, a whole config as far as
// it is known, may have the field elsewhere.
UnknownName UnknownField(const google::protobuf::Descriptor* type,
                         const std::string& name,
                         const google::protobuf::Message& config);

// The command whose config has the field `name` at its top; "" if none has.
std::string CommandWithField(const std::string& name);

struct NamedField {
  std::string path;     // "train.max_epochs"
  std::string instead;  // PeerName's
};

// Whether nothing is to be written.
bool LeftOut(const NamedField& field);

// The fields in `config` that are called `name`, here or by others. Slots that
// are empty count as their slot_example, if its plugin is loaded.
std::vector<NamedField> FieldsCalled(const std::string& name,
                                     const google::protobuf::Message& config);

// What a slot of Capstan's own configs may name, by its path: "strategy",
// "eval_sets[0].data"; nullopt if none has its name.
absl::optional<PluginCategory> CategoryOfSlot(absl::string_view path);

// The same; nullopt if the field isn't a slot.
absl::optional<PluginCategory> CategoryOf(
    const google::protobuf::FieldDescriptor& slot);

// The config type of a slot's slot_example: "capstan.adamw.Config"; "" if it
// has none.
std::string ExampleType(const google::protobuf::FieldDescriptor& slot);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_FIELD_NAMES_H_
