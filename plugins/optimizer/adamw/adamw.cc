// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/optimizer/adamw/adamw.pb.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin.h"

namespace capstan::adamw {
namespace {

absl::Status CheckSettings(const kernels::AdamWOptions& s) {
  const struct {
    const char* field;
    double value;
    bool good;
    const char* rule;
  } checks[] = {
      {"learning_rate", s.learning_rate, s.learning_rate > 0.0,
       "greater than 0"},
      {"beta1", s.beta1, s.beta1 >= 0.0 && s.beta1 < 1.0,
       "at least 0 and less than 1"},
      {"beta2", s.beta2, s.beta2 >= 0.0 && s.beta2 < 1.0,
       "at least 0 and less than 1"},
      {"epsilon", s.epsilon, s.epsilon > 0.0, "greater than 0"},
      {"weight_decay", s.weight_decay, s.weight_decay >= 0.0, "at least 0"}};
  for (const auto& [field, value, good, rule] : checks) {
    CAPSTAN_RETURN_IF_ERROR(
        CheckField(good && std::isfinite(value), field, rule, value));
  }
  return absl::OkStatus();
}

// Adam with decoupled weight decay (formula in kernels/optimizer/adamw.h), in
// one pass over a shard's flat buffers. Masters and state are float32.
class AdamW final : public Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<AdamW>> Create(const Config& config) {
    kernels::AdamWOptions settings;
    settings.learning_rate = config.learning_rate();
    settings.beta1 = config.has_beta1() ? config.beta1() : 0.9;
    settings.beta2 = config.has_beta2() ? config.beta2() : 0.999;
    settings.epsilon = config.has_epsilon() ? config.epsilon() : 1e-8;
    settings.weight_decay =
        config.has_weight_decay() ? config.weight_decay() : 0.01;
    CAPSTAN_RETURN_IF_ERROR(CheckSettings(settings));
    return std::unique_ptr<AdamW>(new AdamW(settings));
  }

  double learning_rate() const override { return settings_.learning_rate; }
  std::vector<std::string> state_names() const override {
    return {"exp_avg", "exp_avg_sq"};
  }
  // Overwrites the gradient on a GPU.
  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& /*specs*/,
              OptimizerShard& shard, absl::Span<at::Tensor> state) override {
    at::NoGradGuard no_grad;
    kernels::AdamWOptions options = settings_;
    options.step = step.step;
    options.learning_rate = step.learning_rate;
    options.gradient_scale = step.gradient_scale;
    kernels::AdamWStep(options, {shard.gradient, shard.master, state[0],
                                 state[1], shard.working, step.device_scale});
  }

 private:
  explicit AdamW(const kernels::AdamWOptions& settings) : settings_(settings) {}

  const kernels::AdamWOptions settings_;  // except what changes per step
};

}  // namespace

CAPSTAN_PLUGIN(Optimizer, AdamW, ::capstan::adamw::Config,
               "Adam with decoupled weight decay, fused over flat buffers");

}  // namespace capstan::adamw
