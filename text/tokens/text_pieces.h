// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_
#define CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::text {

// The first boundary between characters at or after `at`.
size_t CharacterBegin(absl::string_view text, size_t at);

// Cuts a text into pieces of about `piece_bytes` whose tokens, concatenated,
// are the text's, so that they can be tokenized independently. Cuts only at
// line starts where the surrounding text tokenizes the same with and without
// the cut; a text without such a point stays whole. Deterministic.
std::vector<absl::string_view> CutText(const Tokenizer& tokenizer,
                                       absl::string_view text,
                                       size_t piece_bytes);

// The tokens of `piece`, a part of the file's bytes; of a copy, as a text that
// changed while it is tokenized could lead a tokenizer out of its bounds. A
// character that the tokenizer would leave out is an error with file and line.
absl::StatusOr<std::vector<int64_t>> EncodePiece(const Tokenizer& tokenizer,
                                                 absl::string_view piece,
                                                 const MappedFile& file);

// Appends the tokens of `text`, a part of the file's bytes, to *ids. All of the
// machine's cores tokenize. Errors are EncodePiece's.
absl::Status AppendTokens(const Tokenizer& tokenizer, absl::string_view text,
                          const MappedFile& file, std::vector<uint32_t>* ids);

}  // namespace capstan::text

#endif  // CAPSTAN_TEXT_TOKENS_TEXT_PIECES_H_
