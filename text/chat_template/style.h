// SPDX-License-Identifier: Apache-2.0
//
// How each named template writes a conversation, as data.
#ifndef CAPSTAN_TEXT_CHAT_TEMPLATE_STYLE_H_
#define CAPSTAN_TEXT_CHAT_TEMPLATE_STYLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {

// A turn is head_begin, role, head_end, content, turn_end, between_turns.
struct ChatStyle {
  std::string name;
  std::string bos;  // before the first turn; may be ""
  std::string head_begin;
  std::string head_end;
  std::string turn_end;  // a special token, the last that the assistant writes
  std::string between_turns;
  std::string assistant;  // how the role is written: "assistant" or "model"
  // Turn written first where the conversation doesn't begin with one of the
  // system; "": none.
  std::string default_system;
  bool trims = false;  // white space at both ends of each content
  // The system's content is a prefix of the first user turn, and user and
  // assistant take turns.
  bool alternates = false;
  // The head of the assistant's turn ends the text even where nothing is to
  // be generated.
  bool always_prompts = false;
  std::vector<std::string> roles;
  std::vector<std::string> special_tokens;
  std::string jinja;
  // Other spellings in use, of the same text for every conversation that they
  // accept; bos_token stands for `bos`.
  std::vector<std::string> other_jinja;
};

// All of them, in the order in which errors list them.
const std::vector<ChatStyle>& ChatStyles();

// Without white space at both ends, as jinja's trim (Python's str.strip) has
// it: Unicode's spaces too.
absl::string_view TrimUnicode(absl::string_view text);

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_STYLE_H_
