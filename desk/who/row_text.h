// SPDX-License-Identifier: Apache-2.0
//
// A measured row as text: its tokens with their losses, or what else the reader
// has given.
#ifndef CAPSTAN_DESK_WHO_ROW_TEXT_H_
#define CAPSTAN_DESK_WHO_ROW_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "desk/who/measure_rows.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

struct RowToken {
  int64_t id = 0;
  std::string bytes;            // maybe a part of a character
  absl::optional<double> loss;  // unset: not trained on, or not known
};

// One text of a row: of pairs, "chosen" or "rejected"; else without a name.
struct MeasuredText {
  std::string name;
  std::vector<RowToken> tokens;
  std::string Text() const;
};

// A row's texts, without padding; none if its data isn't text. `causal`: a
// model's target is the token after the position that it is noted at.
std::vector<MeasuredText> TextsOf(const MeasuredRow& row,
                                  const Tokenizer* tokenizer, bool causal);

// A row that isn't text: a line for each of its tensors, with its shape and
// first numbers.
std::vector<std::string> TensorLines(const Batch& batch);

// The text for a terminal: each token on a background that is the redder the
// greater its loss, tokens without a loss dimmed. Without control characters of
// its own.
std::string ColouredText(const MeasuredText& text);
// What the colours mean, in them.
std::string ColourLegend();

}  // namespace capstan

#endif  // CAPSTAN_DESK_WHO_ROW_TEXT_H_
