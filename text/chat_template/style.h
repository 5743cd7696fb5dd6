// SPDX-License-Identifier: Apache-2.0
//
// The named chat templates, as data.
#ifndef CAPSTAN_TEXT_CHAT_TEMPLATE_STYLE_H_
#define CAPSTAN_TEXT_CHAT_TEMPLATE_STYLE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// A turn is head_begin, role, head_end, content, turn_end, between_turns.
struct ChatStyle {
  std::string name;
  std::string bos;  // before the first turn; may be ""
  std::string head_begin;
  std::string head_end;
  std::string turn_end;  // a special token, the last one the assistant writes
  std::string between_turns;
  std::string assistant;  // how the role is written: "assistant" or "model"
  // System turn to insert if the conversation doesn't begin with one; "": none.
  std::string default_system;
  bool trims = false;  // strips white space around each content
  // The system content is prefixed to the first user turn; user and assistant
  // must alternate.
  bool alternates = false;
  // Ends with the head of an assistant turn even if nothing is to be generated.
  bool always_prompts = false;
  std::vector<std::string> roles;
  std::vector<std::string> special_tokens;
  std::string jinja;
};

// All styles, in the order in which errors list them.
const std::vector<ChatStyle>& ChatStyles();

// Errors of ChatTemplate::Render.
absl::Status CheckRolesOf(const ChatStyle& style,
                          absl::Span<const ChatMessage> messages);
// ChatTemplate::Check, of these tokens of the template `name`.
absl::Status CheckTokens(const std::vector<std::string>& tokens,
                         absl::string_view name, const Tokenizer& tokenizer);

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_STYLE_H_
