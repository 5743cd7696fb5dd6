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

#include "absl/types/optional.h"
#include "plugins/sdk/chat_template.h"
#include "text/chat_template/style.h"
#include "text/jinja/template.h"

namespace capstan {

// The assistant's ranges are what {% generation %} blocks write if the template
// has them. Else they follow from rendering: a turn begins where the messages
// before it and the generation prompt end, and ends with the end-of-turn token
// behind its content. A turn that isn't found is an error; with a generation
// prompt there are then no ranges, since nothing is trained.
class JinjaTemplate final : public ChatTemplate {
 public:
  // `now` is the time that strftime_now shows. Errors: see
  // ChatTemplate::Recognise.
  static absl::StatusOr<std::unique_ptr<JinjaTemplate>> Create(
      const Tokenizer& tokenizer, std::time_t now);

  // The named style's that writes the same texts, or "the tokenizer's own".
  std::string name() const override { return name_; }
  std::string jinja() const override { return jinja_; }
  std::string end_of_turn() const override { return end_of_turn_; }
  absl::StatusOr<ChatText> Render(absl::Span<const ChatMessage> messages,
                                  bool generation_prompt) const override;
  absl::Status Check(const Tokenizer& tokenizer) const override;

 private:
  JinjaTemplate(std::string jinja, std::unique_ptr<jinja::Template> parsed,
                const Tokenizer& tokenizer, std::time_t now);

  absl::StatusOr<jinja::Rendered> Text(absl::Span<const ChatMessage> messages,
                                       bool generation_prompt) const;
  absl::Status CheckRoles(absl::Span<const ChatMessage> messages) const;
  // Finds out in trials what the template writes; error if it refuses a user's
  // message.
  absl::Status Try(const Tokenizer& tokenizer);
  void FindName();
  void FindEndOfTurn(const Tokenizer& tokenizer);
  // Where the first of turn_ends_ is from `from` on, and its size; npos if
  // there is none.
  size_t TurnEnd(const std::string& text, size_t from, size_t* bytes) const;
  // Where a turn's content ends that begins behind `from`; nullopt if the
  // template doesn't write all of it.
  absl::optional<size_t> ContentEnd(const std::string& content,
                                    const std::string& text, size_t from) const;
  bool WritesAs(const ChatStyle& style) const;
  // Where the assistant's turns begin in `text`, which has all messages, and
  // last where a generation prompt ends; empty if that takes BeginOf: if the
  // prompt's text isn't what tells turns apart.
  std::vector<size_t> AllBegins(absl::Span<const ChatMessage> messages,
                                bool generation_prompt,
                                const std::string& text) const;
  // The same of messages[turn] alone, by rendering those before it; the turn
  // before it ends at `from`.
  absl::StatusOr<size_t> BeginOf(absl::Span<const ChatMessage> messages,
                                 size_t turn, const std::string& text,
                                 size_t from) const;
  // The range of messages[turn], which begins at `found`.
  absl::StatusOr<std::pair<int64_t, int64_t>> RangeOf(
      absl::Span<const ChatMessage> messages, size_t turn,
      const std::string& text, const absl::StatusOr<size_t>& found) const;

  const std::string jinja_;
  const std::unique_ptr<jinja::Template> template_;
  const std::time_t now_;
  // bos_token and the like, as transformers passes them.
  const std::vector<std::pair<std::string, std::string>> special_tokens_;
  const ChatStyle* style_ = nullptr;  // that writes the same texts, or null
  std::string name_;
  std::string prompt_;  // before the assistant's content, after a user's turn
  std::string generation_prompt_;  // "" if turns don't begin with it
  std::string end_of_turn_;
  // Tokens that end a turn: end_of_turn_ and what earlier turns have instead;
  // empty if there are none.
  std::vector<std::string> turn_ends_;
};

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEMPLATE_H_
