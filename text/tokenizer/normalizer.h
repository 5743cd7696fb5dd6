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

namespace capstan {
namespace tokenizer {

// More steps than any file has: each is a level of the stack.
constexpr size_t kMaxSteps = 64;

// What changes a text before it is split. Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Whether it has changed `text`, which must be UTF-8; if so, *out is the new
  // text, and *alignment, which must be new, says where it comes from.
  virtual bool Apply(absl::string_view text, RegexState* state,
                     std::string* out, Alignment* alignment) const = 0;
};

// In order: the "normalizer" of a tokenizer.json, sequences unrolled. Empty for
// null.
absl::StatusOr<std::vector<std::unique_ptr<Normalizer>>> MakeNormalizers(
    const JsonNode& node);

// Each occurrence of `from` becomes `to`; `from` must not be empty.
std::unique_ptr<Normalizer> NewReplace(std::string from, std::string to);

// The "pattern" of a Replace or a Split: {"String": ".."} or {"Regex": ".."}.
struct Pattern {
  std::string literal;           // not empty, or
  std::unique_ptr<Regex> regex;  // not null
};
absl::StatusOr<Pattern> MakePattern(const JsonNode& node);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_NORMALIZER_H_
