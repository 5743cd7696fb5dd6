// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/chat_variables.h"

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"

namespace capstan {
namespace {

// Whether `jinja` has the word `name`, not only as a part of a longer one.
bool Mentions(absl::string_view jinja, absl::string_view name) {
  if (name.empty()) return false;
  const auto in_word = [&](size_t at) {
    const char c = at < jinja.size() ? jinja[at] : ' ';
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (size_t at = jinja.find(name); at != absl::string_view::npos;
       at = jinja.find(name, at + 1)) {
    if (!in_word(at - 1) && !in_word(at + name.size())) return true;
  }
  return false;
}

}  // namespace

absl::Status CheckChatVariables(absl::string_view json,
                                const ChatTemplate& chat_template) {
  if (json.empty()) return absl::OkStatus();
  const auto variables = ParseJson<nlohmann::json>(json);
  if (!variables.is_object()) {
    return absl::InvalidArgumentError(
        "isn't a JSON object, such as {\"enable_thinking\": false}");
  }
  const std::string jinja = chat_template.jinja();
  for (const auto& [name, value] : variables.items()) {
    if (Mentions(jinja, name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("sets \"", name, "\", which the template ",
                     chat_template.name(), " doesn't mention"));
  }
  return absl::OkStatus();
}

}  // namespace capstan
