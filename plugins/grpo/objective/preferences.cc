// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/preferences.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

namespace capstan::grpo {
namespace {

at::Tensor MeanOf(const at::Tensor& sum, const at::Tensor& divisor) {
  return at::stack({sum.detach().to(at::kDouble), divisor.to(at::kDouble)});
}

}  // namespace

std::vector<double> RolesOf(Kind kind, int64_t group_size,
                            absl::Span<const double> rewards) {
  std::vector<double> roles(rewards.size(), 0.0);
  for (size_t begin = 0; begin < rewards.size(); begin += group_size) {
    const absl::Span<const double> group = rewards.subspan(begin, group_size);
    const auto best = std::max_element(group.begin(), group.end());
    const auto worst = std::min_element(group.begin(), group.end());
    if (!(*best > *worst)) continue;
    if (kind == ONLINE_DPO) {
      roles[begin + (best - group.begin())] = 1.0;
      roles[begin + (worst - group.begin())] = -1.0;
      continue;
    }
    for (size_t i = 0; i < group.size(); ++i) {
      if (group[i] == *best) roles[begin + i] = 1.0;
    }
  }
  return roles;
}

PreferenceLoss PreferenceLossOf(Kind kind, double beta, int64_t group_size,
                                const AnswerTokens& answers) {
  PreferenceLoss loss;
  const at::Tensor& roles = answers.advantages;
  const auto sums = [&](const at::Tensor& logps) {
    return at::where(answers.mask, logps, 0.0).sum(1);
  };
  if (kind == REJECTION) {
    loss.sum = -at::where(roles > 0, sums(answers.logps), 0.0).sum();
    loss.metrics = at::zeros({0, 2}, roles.options().dtype(at::kDouble));
    return loss;
  }
  // Of each pair: what the better has more than the worse.
  const at::Tensor gains = sums(answers.logps - answers.reference) * roles;
  const at::Tensor margins = gains.view({-1, group_size}).sum(1) * beta;
  const at::Tensor pairs =
      roles.view({-1, group_size}).abs().sum(1).gt(0).to(at::kFloat);
  loss.sum = -(at::log_sigmoid(margins) * pairs).sum();
  const at::Tensor count = pairs.sum();
  loss.metrics =
      at::stack({MeanOf((margins.gt(0).to(at::kFloat) * pairs).sum(), count),
                 MeanOf((margins * pairs).sum(), count)});
  return loss;
}

int64_t PreferenceCount(Kind kind, const at::Tensor& roles,
                        const at::Tensor& tokens) {
  const at::Tensor learnt = roles > 0;
  return kind == ONLINE_DPO ? learnt.sum().item<int64_t>()
                            : (learnt * tokens).sum().item<int64_t>();
}

std::vector<std::string> PreferenceMetrics(Kind kind) {
  if (kind == REJECTION) return {};
  return {"rewards/accuracies", "rewards/margins"};
}

}  // namespace capstan::grpo
