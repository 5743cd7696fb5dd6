// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_
#define CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::text {

// Cuts a text into pieces of about `piece_bytes` whose tokens, concatenated,
// are the text's, so that they can be tokenized independently. Cuts only at
// line starts where the surrounding text tokenizes the same with and without
// the cut; a text without such a point stays whole. Deterministic.
std::vector<absl::string_view> CutText(const Tokenizer& tokenizer,
                                       absl::string_view text,
                                       size_t piece_bytes);

// The tokens of a copy of `text`, which may be a mapped file's: a text that
// changed while it is tokenized could lead a tokenizer out of its bounds.
std::vector<int64_t> EncodeCopy(const Tokenizer& tokenizer,
                                absl::string_view text);

// Appends the text's tokens to *ids. All of the machine's cores tokenize.
absl::Status AppendTokens(const Tokenizer& tokenizer, absl::string_view text,
                          std::vector<uint32_t>* ids);

}  // namespace capstan::text

#endif  // CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_
