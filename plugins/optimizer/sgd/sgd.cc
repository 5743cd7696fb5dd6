// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/optimizer/sgd/sgd.pb.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin.h"

namespace capstan::sgd {
namespace {

// g = gradient + weight_decay * p; b = momentum * b + g;
// p -= lr * (nesterov ? g + momentum * b : b)
// (torch.optim.SGD; Sutskever et al., "On the importance of initialization and
// momentum in deep learning", 2013). Without momentum there is no state.
class Sgd final : public Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<Sgd>> Create(const Config& c) {
    CAPSTAN_RETURN_IF_ERROR(
        CheckField(std::isfinite(c.learning_rate()) && c.learning_rate() > 0,
                   "learning_rate", "greater than 0", c.learning_rate()));
    CAPSTAN_RETURN_IF_ERROR(CheckField(c.momentum() >= 0 && c.momentum() < 1,
                                       "momentum", "in [0, 1)", c.momentum()));
    if (!(c.weight_decay() >= 0)) {
      return FieldError(
          "weight_decay",
          absl::StrCat("must not be negative, is ", c.weight_decay()));
    }
    if (c.nesterov() && c.momentum() == 0) {
      return FieldError("nesterov", "needs a momentum greater than 0");
    }
    return std::unique_ptr<Sgd>(new Sgd(c));
  }

  double learning_rate() const override { return config_.learning_rate(); }
  std::vector<std::string> state_names() const override {
    if (config_.momentum() == 0) return {};
    return {"momentum"};
  }

  void Update(const OptimizerStep& step, const std::vector<ParameterSpec>&,
              OptimizerShard& shard, absl::Span<at::Tensor> state) override {
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

 private:
  explicit Sgd(const Config& config) : config_(config) {}

  const Config config_;
};

}  // namespace

CAPSTAN_PLUGIN(Optimizer, Sgd, capstan::sgd::Config,
               "stochastic gradient descent with momentum");

}  // namespace capstan::sgd
