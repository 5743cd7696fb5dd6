// SPDX-License-Identifier: Apache-2.0
//
// What a text is compared by, as the Language Model Evaluation Harness does:
// exact match after rewriting both, answers found by regular expressions, and
// ROUGE-L.
#ifndef CAPSTAN_INFERENCE_EVALUATE_TEXT_SCORES_H_
#define CAPSTAN_INFERENCE_EVALUATE_TEXT_SCORES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::evaluate {

// A regular expression in Python's syntax, as far as PCRE2's is the same, on
// UTF-8. Thread-safe. A search that costs too much finds nothing.
class Pattern {
 public:
  // INVALID_ARGUMENT, with the pattern and the place in it.
  static absl::StatusOr<std::unique_ptr<Pattern>> Compile(
      absl::string_view pattern);
  // A pattern of this program's own, which must be right. Never freed.
  static const Pattern& Constant(absl::string_view pattern);
  // Python's re.escape, for characters of ASCII.
  static std::string Escaped(absl::string_view text);
  virtual ~Pattern() = default;

  // Pairs of parentheses that capture.
  virtual int64_t groups() const = 0;

  // Python's re.findall: of each match its first group that isn't empty, or the
  // whole match of a pattern without groups ("" if all groups are empty).
  virtual std::vector<std::string> FindAll(absl::string_view text) const = 0;
  // Python's re.sub, with ${1} for what it writes as \1.
  virtual std::string Replace(absl::string_view text,
                              absl::string_view with) const = 0;
  std::string Remove(absl::string_view text) const { return Replace(text, ""); }
};

// How texts are rewritten before they are compared: the options of the exact
// match of Hugging Face's evaluate, applied in this order.
struct ExactMatchOptions {
  std::vector<std::shared_ptr<const Pattern>> ignore;
  bool ignore_case = false;
  bool ignore_punctuation = false;  // ASCII's
  bool all_punctuation = false;     // Unicode's
  bool ignore_numbers = false;      // ASCII digits
};
std::string Rewritten(absl::string_view text, const ExactMatchOptions& options);
bool ExactMatch(absl::string_view text, absl::string_view reference,
                const ExactMatchOptions& options);

// Python's str.lower and str.upper of each character by itself.
std::string Lower(absl::string_view text);
std::string Upper(absl::string_view text);

// ROUGE-L's F-measure (Lin, "ROUGE", 2004, section 3, with beta 1) over
// lower-case words of ASCII letters and digits, without stemming, as in the
// package rouge-score.
double RougeL(absl::string_view text, absl::string_view reference);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_TEXT_SCORES_H_
