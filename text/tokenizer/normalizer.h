// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_NORMALIZER_H_
#define CAPSTAN_TEXT_TOKENIZER_NORMALIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer/alignment.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/regex.h"

namespace capstan::tokenizer {

// More steps than any known file has; each takes a level of the stack.
constexpr size_t kMaxSteps = 64;

// Transforms a text before it is split. Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Returns whether it changed `text`, which must be UTF-8. If so, *out is the
  // new text, and *alignment, which must be empty, maps it to the old.
  virtual bool Apply(absl::string_view text, RegexState* state,
                     std::string* out, Alignment* alignment) const = 0;
};

// The "normalizer" of a tokenizer.json in order, with sequences flattened.
// Empty for null.
absl::StatusOr<std::vector<std::unique_ptr<Normalizer>>> MakeNormalizers(
    const JsonNode& node);

// Replaces each occurrence of `from` (not empty) with `to`.
std::unique_ptr<Normalizer> NewReplace(std::string from, std::string to);

// The "pattern" of a Replace or a Split: {"String": ".."} or {"Regex": ".."}.
struct Pattern {
  std::string literal;           // not empty, or
  std::unique_ptr<Regex> regex;  // not null
};
absl::StatusOr<Pattern> MakePattern(const JsonNode& node);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_NORMALIZER_H_
