// SPDX-License-Identifier: Apache-2.0
//
// One text of a config: a file, or a --set.
#ifndef CAPSTAN_TRAINER_CONFIG_TEXT_SOURCE_H_
#define CAPSTAN_TRAINER_CONFIG_TEXT_SOURCE_H_

#include <google/protobuf/text_format.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/config/load_config.h"

namespace capstan {

// A parsed text with the places of the fields that it sets.
struct TextSource {
  std::unique_ptr<google::protobuf::Message> message;
  google::protobuf::TextFormat::ParseInfoTree tree;
};

// Parses `text` as a message of `prototype`'s type; `name` stands for it in
// errors ("run.pbtxt:2:5: ..", or "--set x=1: .." where has_lines is false).
// Loads plugins as it meets them.
absl::StatusOr<std::unique_ptr<TextSource>> ParseText(
    const std::string& text, const std::string& name, bool has_lines,
    const google::protobuf::Message& prototype, PluginHost& host);

// Merges `source` over `config`, of the same type: the fields that the text
// sets, be it to their default value, and their places; makes paths absolute
// against `folder`.
absl::Status MergeSource(const TextSource& source, const std::string& name,
                         bool has_lines, const std::string& folder,
                         const ConfigContext& context,
                         google::protobuf::Message* config,
                         FieldPlaces* places);

// The text that sets the field at `path` of a config like `base` to `value`.
absl::StatusOr<std::string> OverrideText(const std::string& path,
                                         const std::string& value,
                                         const RunConfig& base);

// The message that an Any of a loaded plugin's type holds.
absl::StatusOr<std::unique_ptr<google::protobuf::Message>> Unpack(
    const google::protobuf::Any& any);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CONFIG_TEXT_SOURCE_H_
