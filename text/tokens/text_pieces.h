// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_
#define CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace text {

// Cuts a text into pieces of about `piece_bytes` that can be tokenized apart
// from each other: their tokens one after the other are the text's. It is cut
// where a line begins, and only where the surroundings of the place have the
// same tokens whether they are cut there or not. A text that has no such place
// stays whole. The same pieces whoever asks.
std::vector<absl::string_view> CutText(const Tokenizer& tokenizer,
                                       absl::string_view text,
                                       size_t piece_bytes);

}  // namespace text
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_
