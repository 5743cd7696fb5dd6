// SPDX-License-Identifier: Apache-2.0
//
// Which bytes of a rendered conversation the assistant is to write, for
// templates without {% generation %} blocks.
#ifndef CAPSTAN_TEXT_CHAT_TEMPLATE_TURN_FINDER_H_
#define CAPSTAN_TEXT_CHAT_TEMPLATE_TURN_FINDER_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "plugins/sdk/chat_template.h"
#include "text/jinja/value.h"

namespace capstan {

// What a template writes around turns.
struct TurnShape {
  // What is before the assistant's turn: the last one's, as far as it and the
  // generation prompt agree, and an earlier one's.
  std::vector<std::string> headers;
  std::string generation_prompt;  // "" if turns don't begin with it
  // Tokens that end a turn; empty if there are none.
  std::vector<std::string> ends;
};

// The first of the shape's ends from `from` on, and its size; npos if there is
// none.
size_t TurnEnd(const TurnShape& shape, absl::string_view text, size_t from,
               size_t* bytes);
// The part of `turn`, a rendered turn behind `before`, that a generation prompt
// begins with, too: not a tag's part, as of <think> and </think>.
std::string SharedHeader(absl::string_view before, absl::string_view prompted,
                         absl::string_view turn);

// A turn begins behind its header, and ends with the end-of-turn token behind
// all that the template writes of the message. Where that is follows from the
// text itself if the message's content is found behind the header; otherwise
// from rendering the conversation again with marks in the message: what changes
// is what was written of it.
class TurnFinder {
 public:
  using Messages = absl::Span<const jinja::Value>;
  // The text of messages, with a generation prompt or without.
  using RenderText = std::function<absl::StatusOr<std::string>(Messages, bool)>;

  // All must outlive this. `text` is what `render` makes of the messages;
  // `other` is what else the template sees.
  TurnFinder(const TurnShape& shape, Messages messages, bool generation_prompt,
             const jinja::Value& other, const std::string& text,
             RenderText render)
      : shape_(shape),
        messages_(messages),
        prompts_(generation_prompt),
        other_(other),
        text_(text),
        render_(std::move(render)) {}

  // INVALID_ARGUMENT: a turn can't be told; the error is its number, from 1 on.
  absl::StatusOr<std::vector<ChatTurn>> Find() const;

 private:
  // Bytes of the text.
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };

  // Where the assistant's turns begin, from counting generation prompts; empty
  // if those aren't what tells turns apart.
  std::vector<size_t> AllBegins() const;
  // The same of messages[turn] alone, by rendering those before it.
  absl::optional<size_t> BeginOf(size_t turn, size_t from) const;
  // The turn that begins at `begin`, if its content is found there.
  absl::optional<Range> Plainly(size_t turn, size_t begin) const;
  // By marks: nullopt if it isn't written; error if that can't be told.
  absl::StatusOr<absl::optional<Range>> Marked(size_t turn,
                                               absl::optional<size_t> begin,
                                               size_t from) const;
  // Where the last header in [from, to) ends that no turn's end follows there.
  absl::optional<size_t> HeaderEnd(size_t from, size_t to) const;
  // What changes with `changed` in place of messages[turn]; nullopt if nothing.
  absl::StatusOr<absl::optional<Range>> Compare(
      size_t turn, const jinja::Value& changed) const;
  // Where the content behind `from` ends; nullopt if it isn't all there.
  absl::optional<size_t> ContentEnd(const std::string& content,
                                    size_t from) const;

  const TurnShape& shape_;
  const Messages messages_;
  const bool prompts_;
  const jinja::Value& other_;
  const std::string& text_;
  const RenderText render_;
};

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_TURN_FINDER_H_
