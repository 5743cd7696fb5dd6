// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin.h"
#include "tests/conformance/broken/broken_optimizer.pb.h"

namespace acme {
namespace broken_optimizer {

class BrokenOptimizer final : public capstan::Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenOptimizer>> Create(
      const Config& config) {
    return std::unique_ptr<BrokenOptimizer>(new BrokenOptimizer(config.bug()));
  }

  double learning_rate() const override { return 0.01; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }

  void Update(const capstan::OptimizerStep& step,
              const std::vector<capstan::ParameterSpec>&,
              capstan::OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    at::NoGradGuard no_grad;
    if (bug_ == Config::STALE_WORKING_COPY && shard.working.defined()) {
      shard.working.copy_(shard.master);
    }
    at::Tensor gradient = shard.gradient.to(shard.master.scalar_type());
    if (bug_ != Config::UNSCALED) gradient = gradient * step.gradient_scale;
    if (step.device_scale.defined() && bug_ != Config::NO_DEVICE_SCALE) {
      if (!std::isfinite(step.device_scale.item<float>())) return;
      gradient = gradient * step.device_scale;
    }
    if (bug_ == Config::LOCAL_NORM) gradient = gradient / gradient.norm();
    if (bug_ == Config::TOUCHES_PADDING) gradient = gradient + 1e-3;
    if (bug_ == Config::UPHILL) gradient = -gradient;
    at::Tensor momentum = state[0];
    if (bug_ == Config::HIDDEN_STATE) {
      if (!hidden_.defined() || hidden_.sizes() != momentum.sizes()) {
        hidden_ = at::zeros_like(momentum);
      }
      momentum = hidden_;
    }
    momentum.mul_(0.9).add_(gradient);
    if (bug_ == Config::OWN_RATE) shard.master.mul_(1.0 - 1e-4);
    shard.master.add_(momentum, -step.learning_rate);
    if (bug_ == Config::MAKES_NAN && !shard.ranges.empty()) {
      const capstan::ParameterRange& last = shard.ranges.back();
      shard.master[last.offset + last.length - 1].fill_(NAN);
    }
    if (bug_ != Config::STALE_WORKING_COPY && shard.working.defined()) {
      shard.working.copy_(shard.master);
    }
  }

 private:
  explicit BrokenOptimizer(Config::Bug bug) : bug_(bug) {}

  const Config::Bug bug_;
  at::Tensor hidden_;
};

CAPSTAN_PLUGIN(Optimizer, BrokenOptimizer, acme::broken_optimizer::Config,
               "gradient descent with a bug of one's choice");

}  // namespace broken_optimizer
}  // namespace acme
