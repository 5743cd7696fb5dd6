// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_DECODER_H_
#define CAPSTAN_TEXT_TOKENIZER_DECODER_H_

#include <cstdint>
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
// Skips what Hugging Face does only at the start of a text (Strip after Fuse
// and Metaspace remove the space that the tokenizer inserted), because part of
// a text may be decoded by itself.
class Decoder {
 public:
  // From the "decoder" of a tokenizer.json.
  static absl::StatusOr<Decoder> Make(const JsonNode& node,
                                      const Vocabulary& vocabulary);

  std::string Decode(absl::Span<const int64_t> ids) const;

 private:
  // All tokens' bytes concatenated: token i is [begins_[i], begins_[i + 1]).
  // Ids without a token are empty.
  std::string bytes_;
  std::vector<uint32_t> begins_;
};

// Tokens put around a stand-alone text.
struct Ends {
  std::vector<int64_t> before;
  std::vector<int64_t> behind;
};

// From the "post_processor" of a tokenizer.json.
absl::StatusOr<Ends> MakeEnds(const JsonNode& node,
                              const Vocabulary& vocabulary);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_DECODER_H_
