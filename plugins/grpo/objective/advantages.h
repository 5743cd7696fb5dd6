// SPDX-License-Identifier: Apache-2.0
//
// What rewards become before a loss is weighted with them.
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ADVANTAGES_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ADVANTAGES_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "plugins/grpo/objective/grpo.pb.h"

namespace capstan::grpo {

// Returns the advantages of a whole step's answers. Each `group_size`
// consecutive rewards are of one prompt's answers; a NaN is an answer that no
// reward applies to, which counts in no mean and gets the advantage 0.
//
// Standard deviations are unbiased, and 1e-4 is added to them, as in TRL 1.16's
// GRPOTrainer._generate_and_score_completions.
std::vector<double> AdvantagesOf(Advantage advantage, int64_t group_size,
                                 absl::Span<const double> rewards);

// Unbiased, of the values that aren't NaN. Exactly 0 if all are equal, and of
// fewer than two.
double StandardDeviation(absl::Span<const double> values);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ADVANTAGES_H_
