// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>

#include <memory>
#include <string>
#include <vector>

#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin.h"

namespace myvendor::myplugin {

// Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023,
// algorithm 2), for a gradient g, parameters p and their momentum m:
//   u = sign(beta1 * m + (1 - beta1) * g)
//   p = p - learning_rate * (u + weight_decay * p)
//   m = beta2 * m + (1 - beta2) * g
// Each element's update depends on that element alone, so it is the same
// however a strategy cuts the model into shards.
class MyPlugin final : public capstan::Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(
      const Config& config) {
    // `!(a > b)`, not `a <= b`: so NaN is refused, too.
    if (!(config.learning_rate() > 0)) {
      return capstan::FieldError("learning_rate", "must be greater than 0");
    }
    const double beta1 = config.has_beta1() ? config.beta1() : 0.9;
    if (!(beta1 >= 0 && beta1 < 1)) {
      return capstan::FieldError("beta1", "must be in [0, 1)");
    }
    const double beta2 = config.has_beta2() ? config.beta2() : 0.99;
    if (!(beta2 >= 0 && beta2 < 1)) {
      return capstan::FieldError("beta2", "must be in [0, 1)");
    }
    if (!(config.weight_decay() >= 0)) {
      return capstan::FieldError("weight_decay", "must not be negative");
    }
    return std::unique_ptr<MyPlugin>(new MyPlugin(
        config.learning_rate(), beta1, beta2, config.weight_decay()));
  }

  double learning_rate() const override { return learning_rate_; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }

  void Update(const capstan::OptimizerStep& step,
              const std::vector<capstan::ParameterSpec>&,
              capstan::OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    at::NoGradGuard no_grad;
    at::Tensor& momentum = state[0];
    const double rate = step.learning_rate;
    at::Tensor gradient =
        shard.gradient.to(shard.master.scalar_type()).mul(step.gradient_scale);
    if (step.device_scale.defined()) gradient.mul_(step.device_scale);

    const at::Tensor direction =
        momentum.mul(beta1_).add_(gradient.mul(1 - beta1_)).sign_();
    at::Tensor new_master =
        shard.master.mul(1 - rate * weight_decay_).sub_(direction.mul_(rate));
    at::Tensor new_momentum =
        momentum.mul(beta2_).add_(gradient.mul_(1 - beta2_));
    if (step.device_scale.defined()) {
      // A step that the device has to skip leaves everything as it is.
      const at::Tensor good = at::isfinite(step.device_scale);
      new_master = at::where(good, new_master, shard.master);
      new_momentum = at::where(good, new_momentum, momentum);
    }
    shard.master.copy_(new_master);
    momentum.copy_(new_momentum);
    if (shard.working.defined()) shard.working.copy_(shard.master);
  }

 private:
  MyPlugin(double learning_rate, double beta1, double beta2,
           double weight_decay)
      : learning_rate_(learning_rate),
        beta1_(beta1),
        beta2_(beta2),
        weight_decay_(weight_decay) {}

  const double learning_rate_;
  const double beta1_;
  const double beta2_;
  const double weight_decay_;
};

CAPSTAN_PLUGIN(Optimizer, MyPlugin, myvendor::myplugin::Config,
               "Lion: the sign of a momentum");

}  // namespace myvendor::myplugin
