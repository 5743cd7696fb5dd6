// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_ENDS_H_
#define CAPSTAN_TEXT_TOKENIZER_ENDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/vocabulary.h"

namespace capstan::tokenizer {

// Tokens put around a stand-alone text.
struct Ends {
  std::vector<int64_t> before;
  std::vector<int64_t> behind;
};

// From the "post_processor" of a tokenizer.json.
absl::StatusOr<Ends> MakeEnds(const JsonNode& node,
                              const Vocabulary& vocabulary);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_ENDS_H_
