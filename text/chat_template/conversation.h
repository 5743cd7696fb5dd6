// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_CHAT_TEMPLATE_CONVERSATION_H_
#define CAPSTAN_TEXT_CHAT_TEMPLATE_CONVERSATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/chat_template.h"
#include "text/jinja/value.h"

namespace capstan {

// A ChatInput as jinja's values.
struct Conversation {
  // Dicts with a text "role", without keys whose value is null.
  std::vector<jinja::Value> messages;
  jinja::Value tools;      // a list of dicts, or None
  jinja::Value documents;  // a list of dicts, or None
  jinja::Dict variables;
};

// INVALID_ARGUMENT, naming the message or the field, if it is none. As
// transformers, an assistant's reasoning is found under each of the names
// reasoning_content, thinking and (if it was given so) reasoning. A content of
// parts, [{"type": "text", "text": ..}], becomes their text.
absl::StatusOr<Conversation> ConversationOf(const ChatInput& input);

// The message's value of `key` as a text; "" if it isn't one.
const std::string& TextOf(const jinja::Value& message, absl::string_view key);
std::string RoleOf(const jinja::Value& message);
// Its calls; null if there are none.
const jinja::Sequence* CallsOf(const jinja::Value& message);
// The message with another value of `key`.
jinja::Value With(const jinja::Value& message, absl::string_view key,
                  jinja::Value value);

// Makes "function_call" turns the assistant's, with tool_calls if the content
// is the JSON of some. Needed before a template sees them.
void ReadCalls(Conversation* conversation);
// For templates without calls, and without tools: appends an assistant's calls
// to its content as JSON, {"name": .., "arguments": ..} or a list of them; adds
// the tools to the system's turn. Whether there were any. Error: a call that
// isn't a function's name and arguments.
absl::StatusOr<bool> WriteCallsAsText(Conversation* conversation);
absl::StatusOr<bool> WriteToolsAsText(absl::string_view tools,
                                      Conversation* conversation);

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_CONVERSATION_H_
