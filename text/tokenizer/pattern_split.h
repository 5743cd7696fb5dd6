// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_PATTERN_SPLIT_H_
#define CAPSTAN_TEXT_TOKENIZER_PATTERN_SPLIT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pre_tokenizer.h"

namespace capstan {
namespace tokenizer {

// What becomes of the matches that a text is split at ("a", "-", "-", "b").
enum class SplitBehavior {
  kRemoved,             // a b
  kIsolated,            // a - - b
  kMergedWithPrevious,  // a- - b
  kMergedWithNext,      // a - -b
  kContiguous,          // a -- b
};

absl::StatusOr<SplitBehavior> MakeSplitBehavior(const JsonNode& node);

// Splits at the matches of `pattern`, or, if `invert`, at what lies between
// them.
std::unique_ptr<PieceStep> NewPatternSplit(Pattern pattern,
                                           SplitBehavior behavior, bool invert);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_PATTERN_SPLIT_H_
