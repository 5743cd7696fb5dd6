// SPDX-License-Identifier: Apache-2.0
#include "plugins/optimizer/adamw/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/plugin.h"

namespace capstan {
namespace adamw {
namespace {

absl::Status Check(bool good, const char* field, const char* rule,
                   double value) {
  if (good && std::isfinite(value)) return absl::OkStatus();
  return FieldError(field, absl::StrCat("must be ", rule, ", is ", value));
}

absl::Status CheckSettings(const kernels::AdamWOptions& s) {
  CAPSTAN_RETURN_IF_ERROR(Check(s.learning_rate > 0.0, "learning_rate",
                                "greater than 0", s.learning_rate));
  CAPSTAN_RETURN_IF_ERROR(Check(s.beta1 >= 0.0 && s.beta1 < 1.0, "beta1",
                                "at least 0 and less than 1", s.beta1));
  CAPSTAN_RETURN_IF_ERROR(Check(s.beta2 >= 0.0 && s.beta2 < 1.0, "beta2",
                                "at least 0 and less than 1", s.beta2));
  CAPSTAN_RETURN_IF_ERROR(
      Check(s.epsilon > 0.0, "epsilon", "greater than 0", s.epsilon));
  return Check(s.weight_decay >= 0.0, "weight_decay", "at least 0",
               s.weight_decay);
}

// By LibTorch's own fused kernel.
void StepOnGpu(const kernels::AdamWOptions& o, const at::Tensor& gradient,
               const at::Tensor& master, absl::Span<at::Tensor> state) {
  at::Tensor scaled = gradient.to(master.scalar_type());
  if (o.gradient_scale != 1.0) scaled.mul_(o.gradient_scale);
  const at::Tensor step = at::full({}, static_cast<double>(o.step),
                                   master.options().dtype(at::kFloat));
  at::_fused_adamw_({master}, {scaled}, {state[0]}, {state[1]}, {}, {step},
                    o.learning_rate, o.beta1, o.beta2, o.weight_decay,
                    o.epsilon, /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdamW>> AdamW::Create(const Config& config) {
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

void AdamW::Update(const OptimizerStep& step,
                   const std::vector<ParameterSpec>& specs,
                   OptimizerShard& shard, absl::Span<at::Tensor> state) {
  at::NoGradGuard no_grad;
  kernels::AdamWOptions options = settings_;
  options.step = step.step;
  options.learning_rate = step.learning_rate;
  options.gradient_scale = step.gradient_scale;
  if (shard.master.device().is_cpu()) {
    kernels::AdamWStep(options, shard.gradient, shard.master, state[0],
                       state[1], shard.working);
    return;
  }
  StepOnGpu(options, shard.gradient, shard.master, state);
  if (shard.working.defined()) shard.working.copy_(shard.master);
}

CAPSTAN_PLUGIN(Optimizer, AdamW, ::capstan::adamw::Config,
               "Adam with decoupled weight decay, fused over flat buffers");

}  // namespace adamw
}  // namespace capstan
