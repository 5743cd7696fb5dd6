// SPDX-License-Identifier: Apache-2.0
//
// A piece of config text: a file or a --set.
#ifndef CAPSTAN_HOST_CONFIG_TEXT_SOURCE_H_
#define CAPSTAN_HOST_CONFIG_TEXT_SOURCE_H_

#include <google/protobuf/message.h>

#include <string>

#include "absl/status/status.h"
#include "host/config/load_config.h"

namespace capstan {

// Where a text comes from.
struct TextOrigin {
  std::string name;       // for errors: "run.pbtxt", "--set x=1"
  bool has_lines = true;  // whether errors include line and column
  std::string folder;     // base of relative paths
  std::string path;       // of the file, to mend it; "": none
  bool append = false;    // lists append instead of replacing
};

// Parses `text` as a message of `config`'s type, loading plugins on demand, and
// merges it into `config`: the fields that the text sets, even if to their
// defaults, and their locations; makes paths absolute.
absl::Status MergeText(const std::string& text, const TextOrigin& origin,
                       const ConfigContext& context,
                       google::protobuf::Message* config, FieldPlaces* places);

// Replaces the string of a field, or those of a list from number `first` on, by
// what `change` makes of them; `path` is the field's place.
absl::Status ChangeStrings(const google::protobuf::FieldDescriptor* field,
                           const std::string& path, int first,
                           const PathChange& change,
                           google::protobuf::Message* message);

// Applies one --set: "path=value", "path=" (clear), "list=[a, b]" or
// "list+=value".
absl::Status ApplyOverride(const std::string& text,
                           const ConfigContext& context, LoadedConfig* loaded);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_TEXT_SOURCE_H_
