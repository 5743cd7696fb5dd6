// SPDX-License-Identifier: Apache-2.0
//
// What a text is compared by, as the Language Model Evaluation Harness does:
// exact match after rewriting both, answers found by regular expressions, and
// ROUGE-L.
#ifndef CAPSTAN_TRAINER_EVALUATE_TEXT_SCORES_H_
#define CAPSTAN_TRAINER_EVALUATE_TEXT_SCORES_H_

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
  virtual ~Pattern() = default;

  // Python's re.findall: of each match its first group that isn't empty, or the
  // whole match of a pattern without groups ("" if all groups are empty).
  virtual std::vector<std::string> FindAll(absl::string_view text) const = 0;
  // Python's re.sub with an empty replacement.
  virtual std::string Remove(absl::string_view text) const = 0;
};

// How texts are rewritten before they are compared: the options of the exact
// match of Hugging Face's evaluate, applied in this order.
struct ExactMatchOptions {
  std::vector<std::shared_ptr<const Pattern>> ignore;
  bool ignore_case = false;
  bool ignore_punctuation = false;  // ASCII's
  bool ignore_numbers = false;      // ASCII digits
};
bool ExactMatch(absl::string_view text, absl::string_view reference,
                const ExactMatchOptions& options);

// ROUGE-L's F-measure (Lin, "ROUGE", 2004, section 3, with beta 1) over
// lower-case words of ASCII letters and digits, without stemming, as in the
// package rouge-score.
double RougeL(absl::string_view text, absl::string_view reference);

// The mean of many values and its standard error, from their sums.
class Mean {
 public:
  static constexpr int kSums = 3;

  void Add(double value) {
    count_ += 1.0;
    sum_ += value;
    squares_ += value * value;
  }
  // To and from [kSums] numbers that add up over ranks.
  void Store(double* sums) const;
  static Mean Load(const double* sums);

  double count() const { return count_; }
  double mean() const { return count_ == 0.0 ? 0.0 : sum_ / count_; }
  // The sample's standard deviation over sqrt(count); 0 for fewer than two.
  double standard_error() const;

 private:
  double count_ = 0.0;
  double sum_ = 0.0;
  double squares_ = 0.0;
};

}  // namespace capstan::evaluate

#endif  // CAPSTAN_TRAINER_EVALUATE_TEXT_SCORES_H_
