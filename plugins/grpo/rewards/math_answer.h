// SPDX-License-Identifier: Apache-2.0
//
// Whether two answers are the same mathematical value: the rules of the graders
// of Hendrycks' MATH and Minerva, with numbers compared as numbers.
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_MATH_ANSWER_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_MATH_ANSWER_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan::grpo {

// What the last \boxed{} or \fbox{} holds, or what follows the last "####" in
// its line; unset without either, and "" of a box that isn't closed.
absl::optional<std::string> MarkedAnswer(absl::string_view text);

// MarkedAnswer, else what follows the last "answer is", else the last number;
// "" if there is none.
std::string FinalAnswer(absl::string_view text);

// The value of an expression without variables: "-1,234.5", "\frac{3}{4}",
// "2\sqrt{3}", "1.5 \times 10^3", "12 cm". Unset for anything else.
struct MathValue {
  double value = 0.0;
  bool percent = false;  // 50 of "50\%"
};
absl::optional<MathValue> MathValueOf(absl::string_view text);

// `tolerance` is relative to the reference's value.
bool SameAnswer(absl::string_view answer, absl::string_view reference,
                double tolerance);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_MATH_ANSWER_H_
