// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "kernels/optimizer/adamw_8bit.h"
#include "kernels/optimizer/adamw_bf16.h"
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

// bitsandbytes' min_8bit_size: smaller ones take no room worth saving.
constexpr int64_t kSmallestOf8Bit = 4096;

// Adam with decoupled weight decay (formula in kernels/optimizer/adamw.h), in
// one pass over a shard's flat buffers. Masters are float32.
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
    if (!Config::State_IsValid(config.state())) {
      return FieldError("state",
                        absl::StrCat("no such value: ", config.state()));
    }
    return std::unique_ptr<AdamW>(new AdamW(settings, config.state()));
  }

  double learning_rate() const override { return settings_.learning_rate; }
  std::vector<std::string> state_names() const override {
    std::vector<std::string> names;
    for (const OptimizerStateSpec& spec : state_specs()) {
      names.push_back(spec.name);
    }
    return names;
  }
  std::vector<OptimizerStateSpec> state_specs() const override {
    const auto dtype = state_ == Config::BFLOAT16 ? c10::ScalarType::BFloat16
                                                  : c10::ScalarType::Undefined;
    std::vector<OptimizerStateSpec> specs = {{"exp_avg", dtype},
                                             {"exp_avg_sq", dtype}};
    if (state_ == Config::EIGHT_BIT) {
      constexpr auto kFloat = c10::ScalarType::Float;
      specs.push_back({"exp_avg_8bit", c10::ScalarType::Byte});
      specs.push_back({"exp_avg_absmax", kFloat, kernels::kBlockOf8Bit});
      specs.push_back({"exp_avg_sq_8bit", c10::ScalarType::Byte});
      specs.push_back({"exp_avg_sq_absmax", kFloat, kernels::kBlockOf8Bit});
    }
    return specs;
  }
  // A parameter has the first two or the others.
  int64_t StateNumel(const ParameterSpec& parameter, int state) const override {
    if (state_ != Config::EIGHT_BIT) return kAsSpecified;
    return (state < 2) == IsSmall(parameter) ? kByRange : 0;
  }

  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    at::NoGradGuard no_grad;
    kernels::AdamWOptions options = settings_;
    options.step = step.step;
    options.learning_rate = step.learning_rate;
    options.gradient_scale = step.gradient_scale;
    const kernels::AdamWBuffers all = {shard.gradient, shard.master,
                                       state[0],       state[1],
                                       shard.working,  step.device_scale};
    switch (state_) {
      case Config::BFLOAT16:
        return UpdateBf16(options, specs, shard.ranges, all);
      case Config::EIGHT_BIT:
        return Update8Bit(options, specs, shard.ranges, all, state);
      default:
        kernels::AdamWStep(options, all);
    }
  }

 private:
  AdamW(const kernels::AdamWOptions& settings, Config::State state)
      : settings_(settings), state_(state) {}

  static bool IsSmall(const ParameterSpec& parameter) {
    return parameter.numel() < kSmallestOf8Bit;
  }

  static at::Tensor Slice(const at::Tensor& t, int64_t begin, int64_t length) {
    return t.defined() ? t.narrow(0, begin, length) : t;
  }

  static void UpdateBf16(const kernels::AdamWOptions& options,
                         const std::vector<ParameterSpec>& specs,
                         const std::vector<ParameterRange>& ranges,
                         const kernels::AdamWBuffers& all) {
    for (const ParameterRange& r : ranges) {
      const auto slice = [&r](const at::Tensor& t) {
        return Slice(t, r.offset, r.length);
      };
      // The step takes the seed's place: keys differ from step to step.
      const uint64_t key =
          RandomKey(static_cast<uint64_t>(options.step),
                    absl::StrCat("adamw.", specs[r.parameter].name));
      kernels::AdamWBf16Step(
          options,
          {slice(all.gradient), slice(all.parameter), slice(all.exp_avg),
           slice(all.exp_avg_sq), slice(all.working), all.device_scale},
          key, r.begin);
    }
  }

  static void Update8Bit(const kernels::AdamWOptions& options,
                         const std::vector<ParameterSpec>& specs,
                         const std::vector<ParameterRange>& ranges,
                         const kernels::AdamWBuffers& all,
                         absl::Span<at::Tensor> state) {
    int64_t floats = 0, codes = 0, blocks = 0;  // of the ranges so far
    for (const ParameterRange& r : ranges) {
      const at::Tensor gradient = Slice(all.gradient, r.offset, r.length);
      const at::Tensor master = Slice(all.parameter, r.offset, r.length);
      const at::Tensor working = Slice(all.working, r.offset, r.length);
      if (IsSmall(specs[r.parameter])) {
        kernels::AdamWStep(
            options,
            {gradient, master, Slice(state[0], floats, r.length),
             Slice(state[1], floats, r.length), working, all.device_scale});
        floats += r.length;
        continue;
      }
      const int64_t count =
          (r.length + kernels::kBlockOf8Bit - 1) / kernels::kBlockOf8Bit;
      kernels::AdamW8BitStep(
          options,
          {gradient, master, Slice(state[2], codes, r.length),
           Slice(state[3], blocks, count), Slice(state[4], codes, r.length),
           Slice(state[5], blocks, count), working, all.device_scale});
      codes += r.length;
      blocks += count;
    }
  }

  const kernels::AdamWOptions settings_;  // except what changes per step
  const Config::State state_;
};

}  // namespace

CAPSTAN_PLUGIN(
    Optimizer, AdamW, ::capstan::adamw::Config,
    "Adam with decoupled weight decay, its state in 32, 16 or 8 bits");

}  // namespace capstan::adamw
