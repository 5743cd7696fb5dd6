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

// A conversation with all that a template may see. What it views must outlive
// the call.
struct ChatInput {
  // Messages of role and content, unless messages_json is set.
  absl::Span<const ChatMessage> messages;
  // A JSON list of objects, as transformers' apply_chat_template takes them:
  // "role", "content", and what templates know besides, such as "tool_calls"
  // and "reasoning_content". An assistant's turn whose content is the JSON of
  // its calls has the role "function_call".
  absl::string_view messages_json;
  absl::string_view tools;      // a JSON list of functions' schemas; "": none
  absl::string_view documents;  // a JSON list of objects; "": none
  // JSON objects whose keys the template sees as variables (transformers'
  // chat_template_kwargs); "": none. own_variables overrides variables.
  absl::string_view variables;
  absl::string_view own_variables;
  bool generation_prompt = false;
  // Whether to fill in RenderedChat::turns. That takes longer, and a turn that
  // can't be located is an error.
  bool find_turns = false;
};

struct ChatTurn {
  int64_t begin = 0;
  int64_t end = 0;
  // The message's index; -1 unless the template has one {% generation %} block
  // for each of the assistant's messages.
  int64_t message = 0;
};

struct RenderedChat {
  std::string text;
  // Byte ranges as ChatText::assistant's, if ChatInput::find_turns. A message
  // that the template omits has none.
  std::vector<ChatTurn> turns;
  // Whether the template doesn't support tools or calls, so that the
  // conversation's were written into the contents as text (docs/chat_data.md).
  bool tools_as_text = false;
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
  // Like Recognise, for the jinja template in the file `path` and the
  // tokenizer's special tokens.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> FromFile(
      const std::string& path, const Tokenizer& tokenizer);
  // The template that a flag names: one of Names(), a file (what has a slash or
  // a dot in it), or the tokenizer's own if `name` is "" or that template's
  // name.
  static bool IsFile(absl::string_view name);
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Find(
      const std::string& name, const Tokenizer& tokenizer);

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

  // Renders a conversation with its tools, documents and variables. Errors:
  // Render's, JSON that isn't what ChatInput says, and turns that aren't found.
  // Default: UNIMPLEMENTED.
  virtual absl::StatusOr<RenderedChat> RenderInput(
      const ChatInput& input) const;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_CHAT_TEMPLATE_H_
