// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adafactor.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "plugins/optimizer/adafactor/adafactor.pb.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin.h"

namespace capstan::adafactor {
namespace {

enum StateIndex { kRow = 0, kColumn, kExpAvgSq, kExpAvg };

absl::Status CheckConfig(const Config& c) {
  const auto good = [](double value, bool in_range) {
    return std::isfinite(value) && in_range;
  };
  if (c.relative_step() && c.learning_rate() != 0.0) {
    return FieldError("learning_rate",
                      "leave it out: relative_step makes the rate");
  }
  if (!c.relative_step()) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(
        good(c.learning_rate(), c.learning_rate() > 0.0), "learning_rate",
        "greater than 0, or relative_step be set", c.learning_rate()));
  }
  if (c.warmup_init() && !c.relative_step()) {
    return FieldError("warmup_init", "is for relative_step: true only");
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(!c.has_clip_threshold() ||
                     good(c.clip_threshold(), c.clip_threshold() > 0.0),
                 "clip_threshold", "greater than 0", c.clip_threshold()));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      !c.has_decay_rate() || good(c.decay_rate(), c.decay_rate() < 0.0),
      "decay_rate", "less than 0", c.decay_rate()));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      !c.has_beta1() || good(c.beta1(), c.beta1() >= 0.0 && c.beta1() < 1.0),
      "beta1", "at least 0 and less than 1", c.beta1()));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(good(c.weight_decay(), c.weight_decay() >= 0.0),
                 "weight_decay", "at least 0", c.weight_decay()));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(!c.has_epsilon1() || good(c.epsilon1(), c.epsilon1() > 0.0),
                 "epsilon1", "greater than 0", c.epsilon1()));
  return CheckField(!c.has_epsilon2() || good(c.epsilon2(), c.epsilon2() >= 0),
                    "epsilon2", "at least 0", c.epsilon2());
}

bool IsFactored(const ParameterSpec& spec) { return spec.shape.size() >= 2; }

// The formula is in kernels/optimizer/adafactor.h. Means and clipping are of
// whole parameters, so each is needed whole; its update then is the same under
// every strategy.
class Adafactor final : public Optimizer {
 public:
  static absl::StatusOr<std::unique_ptr<Adafactor>> Create(
      const Config& config) {
    CAPSTAN_RETURN_IF_ERROR(CheckConfig(config));
    return std::unique_ptr<Adafactor>(new Adafactor(config));
  }

  // With relative_step the schedule's factor is all that is left of it.
  double learning_rate() const override {
    return config_.relative_step() ? 1.0 : config_.learning_rate();
  }
  std::vector<std::string> state_names() const override {
    std::vector<std::string> names = {"exp_avg_sq_row", "exp_avg_sq_col",
                                      "exp_avg_sq"};
    if (config_.has_beta1()) names.push_back("exp_avg");
    return names;
  }
  bool NeedsWhole(const Model&, int) const override { return true; }

  int64_t StateNumel(const ParameterSpec& parameter, int state) const override {
    const bool factored = IsFactored(parameter);
    const int64_t numel = parameter.numel();
    switch (state) {
      case kRow:
        return factored ? numel / std::max<int64_t>(1, parameter.shape.back())
                        : 0;
      case kColumn:
        return factored ? numel / std::max<int64_t>(1, Rows(parameter)) : 0;
      case kExpAvgSq:
        return factored ? 0 : kByRange;
      default:
        return kAsSpecified;
    }
  }

  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    at::NoGradGuard no_grad;
    kernels::AdafactorOptions options = options_;
    options.step = step.step;
    options.learning_rate = step.learning_rate * RelativeStep(step.step);
    options.gradient_scale = step.gradient_scale;
    int64_t next[3] = {0, 0, 0};  // in the state without padding
    for (const ParameterRange& r : shard.ranges) {
      const ParameterSpec& spec = specs[r.parameter];
      const auto slice = [&r](const at::Tensor& t) {
        return t.defined() ? t.narrow(0, r.offset, r.length) : t;
      };
      const auto take = [&](int index, int64_t length) {
        next[index] += length;
        return state[index].narrow(0, next[index] - length, length);
      };
      kernels::AdafactorBuffers buffers;
      buffers.gradient = slice(shard.gradient);
      buffers.parameter = slice(shard.master);
      buffers.working = slice(shard.working);
      buffers.device_scale = step.device_scale;
      if (config_.has_beta1()) buffers.exp_avg = slice(state[kExpAvg]);
      if (IsFactored(spec)) {
        buffers.row = take(kRow, StateNumel(spec, kRow));
        buffers.column = take(kColumn, StateNumel(spec, kColumn));
        buffers.rows = Rows(spec);
        buffers.columns = spec.shape.back();
      } else {
        buffers.exp_avg_sq = take(kExpAvgSq, r.length);
      }
      kernels::AdafactorStep(options, buffers);
    }
  }

 private:
  explicit Adafactor(const Config& c) : config_(c) {
    if (c.has_epsilon1()) options_.epsilon = c.epsilon1();
    if (c.has_epsilon2()) options_.least_scale = c.epsilon2();
    if (c.has_clip_threshold()) options_.clip_threshold = c.clip_threshold();
    if (c.has_decay_rate()) options_.decay_rate = c.decay_rate();
    options_.beta1 = c.beta1();
    options_.weight_decay = c.weight_decay();
    options_.scale_parameter = c.scale_parameter();
  }

  static int64_t Rows(const ParameterSpec& spec) {
    return spec.shape[spec.shape.size() - 2];
  }

  // transformers' _get_lr; 1 if the rate is the config's.
  double RelativeStep(int64_t step) const {
    if (!config_.relative_step()) return 1.0;
    const double t = static_cast<double>(step);
    return std::min(config_.warmup_init() ? 1e-6 * t : 1e-2,
                    1.0 / std::sqrt(t));
  }

  const Config config_;
  kernels::AdafactorOptions options_;  // except what changes per step
};

}  // namespace

CAPSTAN_PLUGIN(
    Optimizer, Adafactor, ::capstan::adafactor::Config,
    "Adafactor: the second moment of a matrix is a row and a column");

}  // namespace capstan::adafactor
