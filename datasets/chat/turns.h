// SPDX-License-Identifier: Apache-2.0
//
// The messages of a conversation's JSON as a row's turns.
#ifndef CAPSTAN_DATASETS_CHAT_TURNS_H_
#define CAPSTAN_DATASETS_CHAT_TURNS_H_

#include <simdjson.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "datasets/chat/row.h"

namespace capstan::chat {

// The keys of a message's role and text.
struct TurnKeys {
  const char* role;
  const char* content;
  bool sharegpt;  // roles are ShareGPT's
};
constexpr TurnKeys kMessageKeys = {"role", "content", false};
constexpr TurnKeys kShareGptKeys = {"from", "value", true};

// The text for the system's turn about the row's "tools", a JSON list or its
// text; "" if there are none.
absl::Status ToolsText(const simdjson::dom::object& from, std::string* out);

// The system's turn: `system` and the text about tools.
std::string SystemText(absl::string_view system, const std::string& tools);

// Adds a turn for each message of the list `key`. A content is a text or a list
// of text parts, followed by the message's "tool_calls" as JSON. `tools` is
// added to the first turn if that is the system's, otherwise before it.
absl::Status AddTurns(const simdjson::dom::object& from, const char* key,
                      const TurnKeys& keys, const std::string& tools, Row* row);

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_TURNS_H_
