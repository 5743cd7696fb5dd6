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

namespace capstan {
namespace tokenizer {

// The bytes that tokens stand for: those of a text are its tokens' one after
// the other. Thread-safe.
//
// What Hugging Face does only at the beginning of a text (Strip behind Fuse,
// Metaspace: they take away the space that the tokenizer has put there) isn't
// done: a part of a text may be decoded by itself.
class Decoder {
 public:
  // The "decoder" of a tokenizer.json.
  static absl::StatusOr<Decoder> Make(const JsonNode& node,
                                      const Vocabulary& vocabulary);

  std::string Decode(absl::Span<const int64_t> ids) const;

 private:
  // Of all tokens, one after the other; token i's begin at begins_[i] and end
  // at begins_[i + 1]. Ids without a token have none.
  std::string bytes_;
  std::vector<uint32_t> begins_;
};

// What is put around the tokens of a text that stands alone.
struct Ends {
  std::vector<int64_t> before;
  std::vector<int64_t> behind;
};

// As the "post_processor" of a tokenizer.json says.
absl::StatusOr<Ends> MakeEnds(const JsonNode& node,
                              const Vocabulary& vocabulary);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_DECODER_H_
