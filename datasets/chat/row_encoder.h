// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_ROW_ENCODER_H_
#define CAPSTAN_DATASETS_CHAT_ROW_ENCODER_H_

#include <algorithm>
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

namespace capstan::chat {

// `tokenizer` with `chat_template` in place of its own: saves the template's
// jinja, and uses the end of a turn as eos and, if there is no pad token, as
// pad. For ChatML, as is usual, bos is always the token that begins a turn, and
// pad the one that ends it. Tokens stay the same.
std::unique_ptr<Tokenizer> WithChatTemplate(
    std::shared_ptr<const Tokenizer> tokenizer,
    const ChatTemplate& chat_template);

// The max_length of rows that are cut afterwards, if at all. Fits the index.
inline constexpr int64_t kMostUncut = 1 << 29;

// A row as text, with the ranges that are trained on.
struct RenderedRow {
  std::string text;
  // Byte ranges, ascending and disjoint.
  std::vector<std::pair<int64_t, int64_t>> trained;
  // The template knows no tools: RenderedChat.
  bool tools_as_text = false;
  bool everything = false;  // ALL: `trained` is the whole text
  // A plain text: the tokenizer adds its begin and end tokens.
  bool with_begin = false;
  bool with_end = false;
};

struct TokenRow {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;  // the id, or kIgnoredTarget
  bool was_cut = false;         // truncated to max_length

  // The number of trained tokens after the first token, which nothing predicts.
  int64_t trained() const;
  // Keeps max_length tokens at most; sets was_cut.
  void Cut(int64_t max_length, Truncation truncation);
};

// Of a PROMPT of that many tokens.
absl::Status CheckPromptLength(int64_t length, int64_t max_length);

// Row -> text -> tokens and labels. Thread-safe.
class RowEncoder {
 public:
  // If chat_template is null, no_template says why, for rows that need one.
  // Both pointers must outlive the encoder. `variables`, a JSON object, are
  // chat_template_kwargs of all rows.
  RowEncoder(const Tokenizer* tokenizer, const ChatTemplate* chat_template,
             absl::Status no_template, LossOn loss_on, int64_t max_length,
             std::string variables = "", Truncation truncation = KEEP_START);

  // INVALID_ARGUMENT: the row is wrong (usually its roles, or a character that
  // the tokenizer would leave out).
  // FAILED_PRECONDITION: the config doesn't support rows of this kind.
  absl::Status Render(const Row& row, RenderedRow* out) const;

  // Tokenizes the whole text in one pass. A token is trained on if it lies
  // entirely within a trained range, whatever its id. Cuts to max_length.
  void Encode(const RenderedRow& row, TokenRow* out) const;

  // A PREFERENCE's two texts, or an UNPAIRED's one (`chosen`), each cut to
  // max_length; what follows the prompt is trained on. *tools_as_text becomes
  // true as RenderedRow's. Errors: as Render's, and equal texts.
  absl::Status EncodeAnswers(const Row& row, TokenRow* chosen,
                             TokenRow* rejected, bool* tools_as_text) const;

  // Of a PROMPT what the model reads before it answers; nothing is trained on.
  // An error, too, if it is longer than max_length, since another question has
  // another answer.
  absl::Status EncodePrompt(const Row& row, TokenRow* out,
                            bool* tools_as_text) const;

  int64_t max_length() const { return max_length_; }
  Truncation truncation() const { return truncation_; }

  // What the tokens depend on besides the tokenizer's files, as text.
  std::string Settings() const;

 private:
  absl::Status RenderText(const Row& row, RenderedRow* out) const;
  absl::Status RenderChat(const Row& row, RenderedRow* out) const;
  // The first `count` messages.
  absl::StatusOr<RenderedChat> RenderMessages(const Row& row, size_t count,
                                              bool generation_prompt,
                                              bool find_turns) const;
  // Where the text leaves that of the prompt alone, in bytes.
  absl::StatusOr<int64_t> CompletionBegin(const Row& row,
                                          const RenderedRow& rendered) const;
  // Tokens of one completion of such a row, or of its prompt alone.
  absl::StatusOr<std::vector<int64_t>> PairIds(const Row& row,
                                               bool prompt_alone,
                                               bool* tools_as_text) const;
  LossOn LossOf(Kind kind) const;

  const Tokenizer* const tokenizer_;
  const ChatTemplate* const template_;
  const absl::Status no_template_;
  const LossOn loss_on_;
  const int64_t max_length_;
  const std::string variables_;
  const Truncation truncation_;
  std::string eos_;  // after a completion
  // The tokens that the tokenizer adds around a standalone text.
  std::vector<int64_t> begin_;
  std::vector<int64_t> end_;
};

// A row's JSON as tokens; keeps its memory for the next row. One per thread.
struct RowReader {
  // Errors: those of Parse and Render, and more than 256 MiB. `json` may be a
  // mapped file's: it is copied, as a text that changes while it is parsed
  // leads out of bounds.
  absl::Status Read(absl::string_view json, Kind kind,
                    const RowEncoder& encoder);

  // The longer of a pair's texts.
  size_t length() const {
    return std::max(tokens.ids.size(), rejected.ids.size());
  }
  // The fewer of a pair's texts; 0 if they differ only behind max_length.
  int64_t trained() const;
  // Whether a run leaves the row out: it would train on nothing.
  bool left_out() const { return row.kind != PROMPT && trained() == 0; }
  bool was_cut() const { return tokens.was_cut || rejected.was_cut; }

  RowParser parser;
  Row row;
  RenderedRow rendered;
  TokenRow tokens;
  TokenRow rejected;  // of a PREFERENCE, whose chosen text is in `tokens`
};

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_ROW_ENCODER_H_
