// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_DECODER_H_
#define CAPSTAN_TEXT_TOKENIZER_DECODER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace capstan::tokenizer {

// Maps tokens to bytes; a text's bytes are its tokens' concatenated.
// Thread-safe.
//
// Because part of a text may be decoded by itself, tokens become what Hugging
// Face makes of them within a text. What it does only at a text's start or end
// is skipped: Metaspace drops the spaces of the first token, WordPiece puts
// none before it, Strip behind Fuse drops what the tokenizer inserted,
// BPEDecoder puts no space behind the last token.
class Decoder {
 public:
  // How an added token is written where the reference decodes it, and whether
  // it is special: those have no space before them.
  struct Spelling {
    std::string text;
    bool special;
  };

  // From the "decoder" of a tokenizer.json; `added` is by id.
  static absl::StatusOr<Decoder> Make(const JsonNode& node,
                                      const Vocabulary& vocabulary,
                                      const std::map<int64_t, Spelling>& added);

  std::string Decode(absl::Span<const int64_t> ids) const;

 private:
  // All tokens' bytes concatenated: token i is [begins_[i], begins_[i + 1]).
  // Ids without a token are empty.
  std::string bytes_;
  std::vector<uint32_t> begins_;
};

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_DECODER_H_
