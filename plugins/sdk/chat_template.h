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
  // Byte ranges of the text that the assistant writes, ascending: each
  // content and the end-of-turn token behind it.
  std::vector<std::pair<int64_t, int64_t>> assistant;
};

// How a kind of model writes conversations. Thread-safe.
class ChatTemplate {
 public:
  virtual ~ChatTemplate();

  // "chatml", "smollm2", "llama3", "gemma", "llada". An unknown name's error
  // lists the known ones.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Named(
      absl::string_view name);
  static std::vector<std::string> Names();

  // The one that the tokenizer's own jinja text is, told by what it renders.
  // NOT_FOUND if it has none; UNIMPLEMENTED if it isn't one of the above: the
  // error says what to set.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Recognise(
      const Tokenizer& tokenizer);

  virtual std::string name() const = 0;
  // For tokenizer_config.json, so that other tools render alike.
  virtual std::string jinja() const = 0;

  // The conversation as text; with the generation prompt, the head of the
  // assistant's next turn behind it. Errors: roles that the template doesn't
  // know or that don't take turns as it wants, no message at all.
  virtual absl::StatusOr<ChatText> Render(
      absl::Span<const ChatMessage> messages, bool generation_prompt) const = 0;

  // What ends the assistant's turn, as text: a special token.
  virtual std::string end_of_turn() const = 0;
  // Whether the tokenizer has each special token that the template writes as
  // one token; the error names those that it hasn't.
  virtual absl::Status Check(const Tokenizer& tokenizer) const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_CHAT_TEMPLATE_H_
