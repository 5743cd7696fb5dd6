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
  // Ascending byte ranges of `text` written by the assistant: contents with
  // their end-of-turn tokens, or what {% generation %} blocks write.
  std::vector<std::pair<int64_t, int64_t>> assistant;
};

// All that a template may see. What it views must outlive the call.
struct ChatInput {
  absl::Span<const ChatMessage> messages;  // unless messages_json is set
  // A JSON list, as transformers' apply_chat_template takes it, of objects with
  // "role", "content" and what templates know besides ("tool_calls", ..). If an
  // assistant's content is the JSON of its calls, the role is "function_call".
  absl::string_view messages_json;
  absl::string_view tools;      // a JSON list of functions' schemas; "": none
  absl::string_view documents;  // a JSON list of objects; "": none
  // JSON of transformers' chat_template_kwargs; own_variables wins. "": none.
  absl::string_view variables;
  absl::string_view own_variables;
  bool generation_prompt = false;
  // Fills in RenderedChat::turns; a turn that can't be located is an error.
  bool find_turns = false;
};

struct ChatTurn {
  int64_t begin = 0;
  int64_t end = 0;
  // -1 unless there is a {% generation %} block for each assistant's message.
  int64_t message = 0;
};

struct RenderedChat {
  std::string text;
  // As ChatText::assistant, if find_turns; none for messages left out.
  std::vector<ChatTurn> turns;
  // Whether tools and calls were written into contents as text, for a template
  // that doesn't support them (docs/chat_data.md).
  bool tools_as_text = false;
};

// The chat format of a family of models. Thread-safe.
class ChatTemplate {
 public:
  virtual ~ChatTemplate();

  // "chatml", "smollm2", "llama3", "gemma" or "llada". The error lists them.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Named(
      absl::string_view name);
  static std::vector<std::string> Names();

  // Renders the tokenizer's own jinja template as transformers does. The name
  // is that of one above that renders the same. FAILED_PRECONDITION if there
  // is no template; INVALID_ARGUMENT, with the line, if it isn't jinja or
  // refuses a user's message; RESOURCE_EXHAUSTED if it takes too much time or
  // memory.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Recognise(
      const Tokenizer& tokenizer);
  // Like Recognise, for the jinja in a file and `tokenizer`'s special tokens.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> FromFile(
      const std::string& path, const Tokenizer& tokenizer);
  // A flag names one of Names(), a file (what has a slash or a dot in it), or
  // the tokenizer's own template, by "" or its name.
  static bool IsFile(absl::string_view name);
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Find(
      const std::string& name, const Tokenizer& tokenizer);

  virtual std::string name() const = 0;
  virtual std::string jinja() const = 0;  // for tokenizer_config.json

  // `generation_prompt` appends the head of the assistant's next turn. Errors:
  // unknown roles, a wrong order, no messages, what the template raises.
  virtual absl::StatusOr<ChatText> Render(
      absl::Span<const ChatMessage> messages, bool generation_prompt) const = 0;

  virtual std::string end_of_turn() const = 0;  // the assistant's special token
  // Checks that each special token is a single token; the error names others.
  virtual absl::Status Check(const Tokenizer& tokenizer) const = 0;

  // Errors: Render's, invalid JSON, turns not found. Default: UNIMPLEMENTED.
  virtual absl::StatusOr<RenderedChat> RenderInput(
      const ChatInput& input) const;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
  virtual void Room3();
  virtual void Room4();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_CHAT_TEMPLATE_H_
