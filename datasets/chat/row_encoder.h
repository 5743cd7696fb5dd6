// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_ROW_ENCODER_H_
#define CAPSTAN_DATASETS_CHAT_ROW_ENCODER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "datasets/chat/chat.pb.h"
#include "datasets/chat/row.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace chat {

// `tokenizer` with another chat template than its own, if it has one: the
// template's jinja is saved with it, the end of a turn is its eos, and, where
// it has no pad token, its pad. For ChatML, as is usual, bos is what begins a
// turn and pad what ends it, whatever they were. The tokens stay the same.
std::unique_ptr<Tokenizer> WithChatTemplate(
    std::unique_ptr<Tokenizer> tokenizer, const ChatTemplate& chat_template);

// A row as text, with what of it is trained on.
struct RenderedRow {
  std::string text;
  // Byte ranges, ascending, apart.
  std::vector<std::pair<int64_t, int64_t>> trained;
  bool everything = false;  // ALL: `trained` is the whole text
  // A plain text: the tokenizer puts its tokens before it, and behind it.
  bool with_begin = false;
  bool with_end = false;
};

struct TokenRow {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;  // the id, or kIgnoredTarget
  bool was_cut = false;         // max_length took the end

  // Tokens that some token before them predicts and that are trained on.
  int64_t trained() const;
};

// Row -> text -> tokens and labels. Thread-safe.
class RowEncoder {
 public:
  // chat_template may be null: then no_template says why, for rows that need
  // one. Both pointers must outlive the encoder.
  RowEncoder(const Tokenizer* tokenizer, const ChatTemplate* chat_template,
             absl::Status no_template, LossOn loss_on, int64_t max_length);

  // INVALID_ARGUMENT: the row is wrong (its roles, mostly).
  // FAILED_PRECONDITION: the config doesn't go with rows of this kind.
  absl::Status Render(const Row& row, RenderedRow* out) const;

  // One pass of the tokenizer over the whole text. A token is trained on when
  // it lies wholly inside a trained range, whatever its id. Keeps the first
  // max_length tokens.
  void Encode(const RenderedRow& row, TokenRow* out) const;

  // Everything but the tokenizer's files that the tokens depend on, in words.
  std::string Settings() const;

 private:
  absl::Status RenderText(const Row& row, RenderedRow* out) const;
  absl::Status RenderChat(const Row& row, RenderedRow* out) const;
  LossOn LossOf(Kind kind) const;

  const Tokenizer* const tokenizer_;
  const ChatTemplate* const template_;
  const absl::Status no_template_;
  const LossOn loss_on_;
  const int64_t max_length_;
  std::string eos_;  // behind a completion
  // What the tokenizer puts around a text that stands alone.
  std::vector<int64_t> begin_;
  std::vector<int64_t> end_;
};

}  // namespace chat
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_CHAT_ROW_ENCODER_H_
