// SPDX-License-Identifier: Apache-2.0
//
// What else may be learnt from rewarded answers than a policy gradient: which
// of a prompt's answers is better.
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_PREFERENCES_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_PREFERENCES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "plugins/grpo/objective/grpo.pb.h"
#include "plugins/grpo/objective/losses.h"

namespace capstan::grpo {

// In the place of advantages, of a whole step's answers: 1 for those that are
// learnt, -1 for the other of a pair, else 0. REJECTION: each of a prompt's
// best answers is learnt. ONLINE_DPO: its first best and first worst are a
// pair. None of either if its rewards are all equal.
std::vector<double> RolesOf(Kind kind, int64_t group_size,
                            absl::Span<const double> rewards);

struct PreferenceLoss {
  at::Tensor sum;      // scalar float32 with gradient
  at::Tensor metrics;  // [PreferenceMetrics(kind).size(), 2] float64
};

// Of answers whose advantages are roles, in groups of consecutive rows.
// REJECTION: the sum of -log p over the tokens of the answers that are learnt.
// ONLINE_DPO: over pairs, of -log sigmoid(beta * ((w - w') - (l - l'))), with
// w and l log-probabilities of the better and the worse answer and w', l' those
// under the reference (Guo et al., "Direct Language Model Alignment from Online
// AI Feedback", 2024, with the loss of Rafailov et al., 2023, equation 7).
PreferenceLoss PreferenceLossOf(Kind kind, double beta, int64_t group_size,
                                const AnswerTokens& answers);

// What that sum is divided by: tokens that are learnt, or pairs. `tokens`: [B]
// of each answer; roles: [B], both on the CPU.
int64_t PreferenceCount(Kind kind, const at::Tensor& roles,
                        const at::Tensor& tokens);

// TRL's names: of ONLINE_DPO the share of pairs of which the better one has the
// greater implicit reward, and by how much on average.
std::vector<std::string> PreferenceMetrics(Kind kind);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_PREFERENCES_H_
