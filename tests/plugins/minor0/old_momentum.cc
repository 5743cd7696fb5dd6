// SPDX-License-Identifier: Apache-2.0
//
// Uses what minor version 0 had: functions and classes of the core, the
// elements of its containers, every field of OptimizerStep.
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/profile.h"
#include "plugins/sdk/random.h"
#include "tests/plugins/minor0/old_momentum.pb.h"

static_assert(capstan::kPluginApiMinor == 0, "not the frozen SDK");

namespace acme {
namespace old_momentum {

// RandomBits(1, 2, 3)[0]: runs of that version must repeat.
constexpr uint32_t kBits = 4031113034;

// v = 0.9 v + g, p -= lr v.
class OldMomentum final : public capstan::Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<OldMomentum>> Create(
      const Config& config) {
    if (!(config.learning_rate() > 0)) {
      return capstan::FieldError(
          "learning_rate",
          absl::StrCat("must be greater than 0, is ", config.learning_rate()));
    }
    if (capstan::RandomBits(1, 2, 3)[0] != kBits) {
      return absl::InternalError("other random numbers than in version 1.0");
    }
    return std::unique_ptr<OldMomentum>(
        new OldMomentum(config.learning_rate()));
  }

  double learning_rate() const override { return learning_rate_; }
  std::vector<std::string> state_names() const override { return {"velocity"}; }

  void Update(const capstan::OptimizerStep& step,
              const std::vector<capstan::ParameterSpec>& specs,
              capstan::OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    at::NoGradGuard no_grad;
    for (const capstan::ParameterRange& range : shard.ranges) {
      // Fails if the elements of `specs` have grown.
      const capstan::ParameterSpec& spec = specs.at(range.parameter);
      if (range.begin + range.length > spec.numel()) {
        throw std::out_of_range(spec.name);
      }
    }
    const capstan::ProfileScope time("old_momentum");
    const capstan::MemoryScope memory(capstan::MemoryCategory::kWorkspace);
    at::Tensor gradient = shard.gradient.mul(step.gradient_scale);
    if (step.device_scale.defined()) gradient.mul_(step.device_scale);
    state[0].mul_(0.9).add_(gradient);
    shard.master.add_(state[0], -step.learning_rate);
    if (shard.working.defined()) shard.working.copy_(shard.master);
  }

 private:
  explicit OldMomentum(double learning_rate) : learning_rate_(learning_rate) {}

  const double learning_rate_;
};

CAPSTAN_PLUGIN(Optimizer, OldMomentum, acme::old_momentum::Config,
               "momentum of plugin API 1.0");

}  // namespace old_momentum
}  // namespace acme
