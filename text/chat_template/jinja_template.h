// SPDX-License-Identifier: Apache-2.0
//
// A tokenizer's own chat template, rendered as transformers does.
#ifndef CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEMPLATE_H_
#define CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEMPLATE_H_

#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/chat_template.h"
#include "text/chat_template/conversation.h"
#include "text/chat_template/style.h"
#include "text/chat_template/turn_finder.h"
#include "text/jinja/template.h"

namespace capstan {

// The assistant's ranges are what {% generation %} blocks write if the template
// has them; else a TurnFinder finds them.
class JinjaTemplate final : public ChatTemplate {
 public:
  // `now` is the time that strftime_now shows. Errors: see
  // ChatTemplate::Recognise.
  static absl::StatusOr<std::unique_ptr<JinjaTemplate>> Create(
      const Tokenizer& tokenizer, std::time_t now);
  // Of another source, which errors call `where`.
  static absl::StatusOr<std::unique_ptr<JinjaTemplate>> Create(
      std::string source, const std::string& name, const std::string& where,
      const Tokenizer& tokenizer, std::time_t now);

  // The named style's that writes the same texts, or the name given.
  std::string name() const override { return name_; }
  std::string jinja() const override { return jinja_; }
  std::string end_of_turn() const override { return end_of_turn_; }
  absl::StatusOr<ChatText> Render(absl::Span<const ChatMessage> messages,
                                  bool generation_prompt) const override;
  absl::StatusOr<RenderedChat> RenderInput(
      const ChatInput& input) const override;
  absl::Status Check(const Tokenizer& tokenizer) const override;

 private:
  JinjaTemplate(std::string jinja, std::string where,
                std::unique_ptr<jinja::Template> parsed,
                const Tokenizer& tokenizer, std::time_t now);

  static absl::Status OfTemplate(const std::string& where,
                                 const absl::Status& status);
  absl::StatusOr<jinja::Rendered> Text(absl::Span<const ChatMessage> messages,
                                       bool generation_prompt) const;
  // With the tools, documents and variables of `other`.
  absl::StatusOr<jinja::Rendered> Text(absl::Span<const jinja::Value> messages,
                                       const Conversation& other,
                                       bool generation_prompt) const;
  absl::Status CheckRoles(absl::Span<const jinja::Value> messages) const;
  // Finds out in trials what the template writes; error if it refuses a user's
  // message.
  absl::Status Try(const Tokenizer& tokenizer);
  // What precedes the first answer of a trial's text since the question, or
  // its turn's end.
  std::string HeadOf(const std::string& text) const;
  void FindName();
  void FindEndOfTurn(const Tokenizer& tokenizer);
  void FindToolUse(const Tokenizer& tokenizer);
  bool WritesAs(const ChatStyle& style) const;
  // Adds the turns of out->text, of which generation blocks wrote `generation`.
  absl::Status FindTurns(
      const Conversation& conversation, bool generation_prompt,
      const std::vector<std::pair<int64_t, int64_t>>& generation,
      RenderedChat* out) const;

  const std::string jinja_;
  const std::string where_;  // in errors
  const std::unique_ptr<jinja::Template> template_;
  const std::time_t now_;
  // bos_token and the like, as transformers passes them.
  const std::vector<std::pair<std::string, std::string>> special_tokens_;
  const ChatStyle* style_ = nullptr;  // that writes the same texts, or null
  std::string name_;
  std::string end_of_turn_;
  TurnShape shape_;  // its ends: end_of_turn_ and what earlier turns have
  bool writes_tools_ = false;
  bool writes_calls_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEMPLATE_H_
