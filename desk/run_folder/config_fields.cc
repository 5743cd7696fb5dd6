// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/config_fields.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace capstan {
namespace {

std::string Unquoted(absl::string_view value) {
  std::string text;
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"' &&
      absl::CUnescape(value.substr(1, value.size() - 2), &text)) {
    return text;
  }
  return std::string(value);
}

}  // namespace

FieldLists FieldsOfConfig(absl::string_view text) {
  FieldLists fields;
  // The names of the messages around a line; "" for a plugin's, whose fields
  // are its slot's.
  std::vector<std::string> around;
  const auto path = [&](absl::string_view name) {
    std::vector<std::string> names;
    for (const std::string& one : around) {
      if (!one.empty()) names.push_back(one);
    }
    if (!name.empty()) names.emplace_back(name);
    return absl::StrJoin(names, ".");
  };
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line == "}") {
      if (!around.empty()) around.pop_back();
      continue;
    }
    if (absl::ConsumeSuffix(&line, " {")) {
      absl::string_view plugin = line;
      if (absl::ConsumePrefix(&plugin, "[plugin/") &&
          absl::ConsumeSuffix(&plugin, ".Config]")) {
        fields[path("")].emplace_back(plugin);
        line = "";
      }
      around.emplace_back(line);
      continue;
    }
    const size_t colon = line.find(": ");
    if (colon == line.npos || line.front() == '#') continue;
    fields[path(line.substr(0, colon))].push_back(
        Unquoted(line.substr(colon + 2)));
  }
  return fields;
}

}  // namespace capstan
