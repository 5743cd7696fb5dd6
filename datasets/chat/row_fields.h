// SPDX-License-Identifier: Apache-2.0
//
// A row's JSON: its values by their keys, and its turns. Errors are
// INVALID_ARGUMENT and name the key.
#ifndef CAPSTAN_DATASETS_CHAT_ROW_FIELDS_H_
#define CAPSTAN_DATASETS_CHAT_ROW_FIELDS_H_

#include <simdjson.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "datasets/chat/row.h"

namespace capstan::chat {

// The keys of a message's role and text.
struct TurnKeys {
  const char* role;
  const char* content;
  bool sharegpt;  // roles are ShareGPT's
};
inline constexpr TurnKeys kMessageKeys = {"role", "content", false};
inline constexpr TurnKeys kShareGptKeys = {"from", "value", true};

template <typename... Parts>
absl::Status Bad(const Parts&... problem) {
  return absl::InvalidArgumentError(absl::StrCat(problem...));
}

inline absl::string_view View(std::string_view text) {
  return {text.data(), text.size()};
}

// "a list", "null", ..
const char* TypeText(const simdjson::dom::element& value);
absl::Status Missing(const char* key);
absl::Status WrongType(const char* key, const simdjson::dom::element& value,
                       const char* wanted);

bool Has(const simdjson::dom::object& row, const char* key);
// Whether the key is there and not null.
bool Find(const simdjson::dom::object& row, const char* key,
          simdjson::dom::element* value);
// The first of `keys` that the row has; null if none.
template <size_t kCount>
const char* FirstOf(const simdjson::dom::object& row,
                    const char* const (&keys)[kCount]) {
  const auto key = std::find_if(std::begin(keys), std::end(keys),
                                [&](const char* k) { return Has(row, k); });
  return key == std::end(keys) ? nullptr : *key;
}

// `*out` views the row.
absl::Status Text(const simdjson::dom::object& row, const char* key,
                  absl::string_view* out);
absl::Status CopyText(const simdjson::dom::object& row, const char* key,
                      std::string* out);
// "" if the key is absent or null.
absl::Status OptionalText(const simdjson::dom::object& row, const char* key,
                          absl::string_view* out);

// What the row has beside messages for a template: "tools", "documents" and
// "chat_template_kwargs".
absl::Status AddContext(const simdjson::dom::object& from, Row* row);

// Adds a turn for each message of the list `key`, which must not be empty.
absl::Status AddTurns(const simdjson::dom::object& from, const char* key,
                      const TurnKeys& usual, Row* row);
// Adds the text `key` as a turn of `role`.
absl::Status AddText(const simdjson::dom::object& from, const char* key,
                     const char* role, Row* row);
// Adds the text "system", if there is one.
absl::Status AddSystem(const simdjson::dom::object& from, Row* row);
// Fills an empty `row` and its `rejected` from "prompt", "chosen", "rejected"
// and "margin", as TRL knows them: texts or lists of messages; without a prompt
// it is what both begin with. INVALID_ARGUMENT: they don't make a pair.
absl::Status FillPreference(const simdjson::dom::object& from, Row* row);
// {"role": .., "content": ..}.
std::string MessageJson(absl::string_view role, absl::string_view content);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_ROW_FIELDS_H_
