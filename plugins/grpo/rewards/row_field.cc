// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/row_field.h"

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"

namespace capstan::grpo {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostQuoted = 120;

std::string KeysOf(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys.empty() ? "none" : absl::StrJoin(keys, ", ");
}

}  // namespace

absl::StatusOr<Json> RowField(absl::string_view row, absl::string_view field) {
  const Json json = ParseJson<Json>(row);
  const Json* at = &json;
  absl::string_view rest = field;
  while (true) {
    if (!at->is_object()) break;
    // A name may have a dot of its own.
    auto found = at->find(std::string(rest));
    if (found != at->end()) return *found;
    const size_t dot = rest.find('.');
    if (dot == absl::string_view::npos) break;
    found = at->find(std::string(rest.substr(0, dot)));
    if (found == at->end()) break;
    at = &*found;
    rest = rest.substr(dot + 1);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the row has no field \"", field, "\"; it has ",
                   json.is_object() ? KeysOf(json) : "no fields"));
}

std::string TextOf(const Json& value) {
  return value.is_string() ? value.get<std::string>() : JsonText(value);
}

std::string Quoted(absl::string_view text) {
  const bool cut = text.size() > kMostQuoted;
  return absl::StrCat(JsonText(Json(std::string(text.substr(0, kMostQuoted)))),
                      cut ? ".." : "");
}

}  // namespace capstan::grpo
