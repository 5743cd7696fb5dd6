// SPDX-License-Identifier: Apache-2.0
//
// A plugin as somebody else would write it: in a namespace and a proto package
// of its own, with nothing of Capstan but the SDK.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/where.h>

#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin.h"
#include "tests/plugins/acme/signsgd.pb.h"

namespace acme {
namespace signsgd {

// p -= lr * sign(g) (Bernstein et al., "signSGD: compressed optimisation for
// non-convex problems", 2018).
class SignSgd final : public capstan::Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<SignSgd>> Create(const Config& config) {
    if (!(config.learning_rate() > 0)) {
      return capstan::FieldError("learning_rate", "must be greater than 0");
    }
    return std::make_unique<SignSgd>(config.learning_rate());
  }

  explicit SignSgd(double learning_rate) : learning_rate_(learning_rate) {}

  double learning_rate() const override { return learning_rate_; }
  std::vector<std::string> state_names() const override { return {}; }
  void Update(const capstan::OptimizerStep& step,
              const std::vector<capstan::ParameterSpec>&,
              capstan::OptimizerShard& shard, absl::Span<at::Tensor>) override {
    at::NoGradGuard no_grad;
    at::Tensor direction = shard.gradient.sign();
    // Scales are positive, so that they change no sign. One that isn't finite
    // skips the step, where the gradient may be anything.
    if (step.device_scale.defined()) {
      direction = at::where(step.device_scale.isfinite(), direction, 0.0);
    }
    shard.master.add_(direction, -step.learning_rate);
    if (shard.working.defined()) shard.working.copy_(shard.master);
  }

 private:
  const double learning_rate_;
};

CAPSTAN_PLUGIN(Optimizer, SignSgd, acme::signsgd::Config,
               "steps of one size in every direction");

}  // namespace signsgd
}  // namespace acme
