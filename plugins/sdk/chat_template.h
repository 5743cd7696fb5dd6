// SPDX-License-Identifier: Apache-2.0
//
// Conversations as the text that a model is trained on.
#ifndef CAPSTAN_PLUGINS_SDK_CHAT_TEMPLATE_H_
#define CAPSTAN_PLUGINS_SDK_CHAT_TEMPLATE_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", or what a template knows
  std::string content;
};

struct ChatText {
  std::string text;
  // Byte ranges of `text` written by the assistant, ascending: each content
  // with its end-of-turn token, or what a template's {% generation %} blocks
  // write.
  std::vector<std::pair<int64_t, int64_t>> assistant;
};

// The chat format of a family of models. Thread-safe.
class ChatTemplate {
 public:
  virtual ~ChatTemplate();

  // "chatml", "smollm2", "llama3", "gemma" or "llada". The error for an unknown
  // name lists the known ones.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Named(
      absl::string_view name);
  static std::vector<std::string> Names();

  // The tokenizer's own jinja template, rendered as transformers does; its name
  // is that of the template above that renders the same texts, if there is one.
  // NOT_FOUND if it has no template; INVALID_ARGUMENT, with the line, if that
  // isn't jinja or refuses a user's message; RESOURCE_EXHAUSTED if it takes too
  // much time or memory.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Recognise(
      const Tokenizer& tokenizer);

  virtual std::string name() const = 0;
  // For tokenizer_config.json, so that other tools render the same text.
  virtual std::string jinja() const = 0;

  // Renders the conversation; with `generation_prompt`, the head of the
  // assistant's next turn is appended. Errors: unknown roles, roles in the
  // wrong order, no messages, what a template of a tokenizer raises.
  virtual absl::StatusOr<ChatText> Render(
      absl::Span<const ChatMessage> messages, bool generation_prompt) const = 0;

  // The special token that ends the assistant's turn, as text.
  virtual std::string end_of_turn() const = 0;
  // Checks that each special token of the template is a single token of the
  // tokenizer; the error names those that aren't.
  virtual absl::Status Check(const Tokenizer& tokenizer) const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_CHAT_TEMPLATE_H_
