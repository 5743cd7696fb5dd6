// SPDX-License-Identifier: Apache-2.0
#include "plugins/optimizer/sgd/sgd.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/plugin.h"

namespace capstan {
namespace sgd {

absl::StatusOr<std::unique_ptr<Sgd>> Sgd::Create(const Config& config) {
  if (!std::isfinite(config.learning_rate()) || config.learning_rate() <= 0) {
    return FieldError(
        "learning_rate",
        absl::StrCat("must be greater than 0, is ", config.learning_rate()));
  }
  if (!(config.momentum() >= 0 && config.momentum() < 1)) {
    return FieldError(
        "momentum", absl::StrCat("must be in [0, 1), is ", config.momentum()));
  }
  if (!(config.weight_decay() >= 0)) {
    return FieldError("weight_decay", absl::StrCat("must not be negative, is ",
                                                   config.weight_decay()));
  }
  if (config.nesterov() && config.momentum() == 0) {
    return FieldError("nesterov", "needs a momentum greater than 0");
  }
  return std::unique_ptr<Sgd>(new Sgd(config));
}

std::vector<std::string> Sgd::state_names() const {
  if (config_.momentum() == 0) return {};
  return {"momentum"};
}

void Sgd::Update(const OptimizerStep& step, const std::vector<ParameterSpec>&,
                 OptimizerShard& shard, absl::Span<at::Tensor> state) {
  at::NoGradGuard no_grad;
  const at::Tensor& scale = step.device_scale;
  at::Tensor good;  // whether to update at all; undefined: yes
  if (scale.defined()) good = at::isfinite(scale);
  // x, or 0 if nothing may change: the amount added to master and state.
  const auto change = [&good](const at::Tensor& x) {
    return good.defined() ? at::where(good, x, 0.0) : x;
  };
  at::Tensor gradient =
      shard.gradient.to(shard.master.scalar_type()).mul(step.gradient_scale);
  if (scale.defined()) gradient.mul_(scale);
  if (config_.weight_decay() != 0) {
    gradient.add_(shard.master, config_.weight_decay());
  }
  gradient = change(gradient);
  if (config_.momentum() != 0) {
    // With zero state the first b is g, as in torch.
    if (good.defined()) {
      state[0].mul_(at::where(good, config_.momentum(), 1.0));
    } else {
      state[0].mul_(config_.momentum());
    }
    state[0].add_(gradient);
    if (config_.nesterov()) {
      gradient = change(gradient.add_(state[0], config_.momentum()));
    } else {
      gradient = change(state[0]);
    }
  }
  shard.master.add_(gradient, -step.learning_rate);
  if (shard.working.defined()) shard.working.copy_(shard.master);
}

CAPSTAN_PLUGIN(Optimizer, Sgd, capstan::sgd::Config,
               "stochastic gradient descent with momentum");

}  // namespace sgd
}  // namespace capstan
