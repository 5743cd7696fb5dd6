// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/config_fields.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace capstan {

std::map<std::string, std::string> ConfigFields(absl::string_view config) {
  std::map<std::string, std::string> fields;
  const auto add = [&fields](const std::string& path, absl::string_view value) {
    std::string& text = fields[path];
    absl::StrAppend(&text, text.empty() ? "" : ", ", value);
  };
  std::vector<std::string> paths = {""};  // of the messages around a line
  for (absl::string_view line : absl::StrSplit(config, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line == "}") {
      if (paths.size() > 1) paths.pop_back();
    } else if (absl::ConsumeSuffix(&line, "{")) {
      line = absl::StripAsciiWhitespace(line);
      const std::string parent = paths.back();
      if (absl::ConsumePrefix(&line, "[plugin/")) {
        absl::ConsumeSuffix(&line, ".Config]");
        add(parent, line);
        paths.push_back(parent);
      } else {
        paths.push_back(absl::StrCat(parent, parent.empty() ? "" : ".", line));
      }
    } else if (!absl::StartsWith(line, "#")) {
      const std::pair<absl::string_view, absl::string_view> parts =
          absl::StrSplit(line, absl::MaxSplits(": ", 1));
      if (parts.second.empty()) continue;
      const std::string& parent = paths.back();
      add(absl::StrCat(parent, parent.empty() ? "" : ".", parts.first),
          parts.second);
    }
  }
  return fields;
}

}  // namespace capstan
