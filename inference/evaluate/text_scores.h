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
#include "text/pattern/pattern.h"

namespace capstan::evaluate {

// How texts are rewritten before they are compared: the options of the exact
// match of Hugging Face's evaluate, applied in this order.
struct ExactMatchOptions {
  std::vector<std::shared_ptr<const Pattern>> ignore;
  bool ignore_case = false;
  bool ignore_punctuation = false;  // ASCII's
  bool all_punctuation = false;     // Unicode's
  bool ignore_numbers = false;      // ASCII digits
};
// Errors are those of `ignore`.
absl::StatusOr<std::string> Rewritten(absl::string_view text,
                                      const ExactMatchOptions& options);
absl::StatusOr<bool> ExactMatch(absl::string_view text,
                                absl::string_view reference,
                                const ExactMatchOptions& options);

// Python's str.lower and str.upper of each character by itself.
std::string Lower(absl::string_view text);
std::string Upper(absl::string_view text);

// The runs of what isn't white space, and one more at each end that is.
int64_t CountWords(absl::string_view text);

// ROUGE-L's F-measure (Lin, "ROUGE", 2004, section 3, with beta 1) over
// lower-case words of ASCII letters and digits, without stemming, as in the
// package rouge-score.
double RougeL(absl::string_view text, absl::string_view reference);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_TEXT_SCORES_H_
