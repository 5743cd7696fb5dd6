// SPDX-License-Identifier: Apache-2.0
//
// What all kinds of AdamW's state have in common: a step's constants and, on
// CPUs, the loop over elements.
#ifndef CAPSTAN_KERNELS_OPTIMIZER_ADAMW_LOOPS_H_
#define CAPSTAN_KERNELS_OPTIMIZER_ADAMW_LOOPS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/types/optional.h"
#include "base/simd/instruction_set.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/guarded_step.h"

#define ALWAYS_INLINE inline __attribute__((always_inline))

namespace capstan::kernels {

// Elements per thread, below which waking one costs more than it saves.
constexpr int64_t kAdamWGrain = 32768;

// A step's constants, rounded once, the same for all kinds of state.
inline cuda::AdamWFactors AdamWFactorsOf(const AdamWOptions& o) {
  const double step = static_cast<double>(o.step);
  cuda::AdamWFactors f;
  f.gradient_scale = static_cast<float>(o.gradient_scale);
  f.decay = static_cast<float>(1.0 - o.learning_rate * o.weight_decay);
  f.weight1 = static_cast<float>(1.0 - o.beta1);
  f.beta2 = static_cast<float>(o.beta2);
  f.weight2 = static_cast<float>(1.0 - o.beta2);
  f.rate =
      static_cast<float>(o.learning_rate / (1.0 - std::pow(o.beta1, step)));
  f.root2 = static_cast<float>(std::sqrt(1.0 - std::pow(o.beta2, step)));
  f.epsilon = static_cast<float>(o.epsilon);
  return f;
}

// For buffers on the CPU; none: nothing changes.
inline absl::optional<cuda::AdamWFactors> AdamWFactorsOnHost(
    const AdamWOptions& o, const at::Tensor& device_scale) {
  const absl::optional<float> scale = HostScale(o.gradient_scale, device_scale);
  if (!scale.has_value()) return absl::nullopt;
  cuda::AdamWFactors f = AdamWFactorsOf(o);
  f.gradient_scale = *scale;
  return f;
}

// Buffers in memory.
template <typename Moment>
struct AdamWMemory {
  explicit AdamWMemory(const AdamWBuffers& b)
      : gradient(b.gradient.const_data_ptr()),
        parameter(b.parameter.mutable_data_ptr<float>()),
        exp_avg(static_cast<Moment*>(b.exp_avg.mutable_data_ptr())),
        exp_avg_sq(static_cast<Moment*>(b.exp_avg_sq.mutable_data_ptr())),
        working(b.working.defined() ? b.working.mutable_data_ptr() : nullptr) {}
  const void* gradient;
  float* parameter;
  Moment* exp_avg;
  Moment* exp_avg_sq;
  void* working;
};

// Stands for the type of a working copy that there isn't.
using NoWorkingCopy = char;

// Updates elements [begin, end). Moments says how they are stored: as
// Moments::Stored, which Read turns into float32, and Write writes those of
// element i. Vectorised, with c10's conversions, too.
template <typename Moments, typename Gradient, typename Working>
ALWAYS_INLINE void AdamWRange(const cuda::AdamWFactors& factors,
                              const AdamWMemory<typename Moments::Stored>& b,
                              const Moments& kind, int64_t begin, int64_t end) {
  const cuda::AdamWFactors f = factors;
  const Moments moments = kind;
  const auto* __restrict gradient = static_cast<const Gradient*>(b.gradient);
  float* __restrict parameter = b.parameter;
  auto* __restrict exp_avg = b.exp_avg;
  auto* __restrict exp_avg_sq = b.exp_avg_sq;
  auto* __restrict working = static_cast<Working*>(b.working);
  for (int64_t i = begin; i < end; ++i) {
    const float g = static_cast<float>(gradient[i]) * f.gradient_scale;
    const float before = Moments::Read(exp_avg[i]);
    const float m = before + f.weight1 * (g - before);
    const float v = Moments::Read(exp_avg_sq[i]) * f.beta2 + f.weight2 * g * g;
    const float denominator = std::sqrt(v) / f.root2 + f.epsilon;
    const float p = parameter[i] * f.decay - f.rate * m / denominator;
    moments.Write(i, m, v, &exp_avg[i], &exp_avg_sq[i]);
    parameter[i] = p;
    if constexpr (!std::is_same_v<Working, NoWorkingCopy>) {
      working[i] = static_cast<Working>(p);
    }
  }
}

template <typename Moments>
using AdamWUpdate = void (*)(const cuda::AdamWFactors& factors,
                             const AdamWMemory<typename Moments::Stored>& b,
                             const Moments& kind, int64_t begin, int64_t end);

template <typename Moments, typename Gradient>
AdamWUpdate<Moments> AdamWUpdateFor(const at::Tensor& working) {
  if (!working.defined()) {
    return BestOf<AdamWRange<Moments, Gradient, NoWorkingCopy>>();
  }
  return working.scalar_type() == at::kBFloat16
             ? BestOf<AdamWRange<Moments, Gradient, at::BFloat16>>()
             : BestOf<AdamWRange<Moments, Gradient, at::Half>>();
}

// The loop for this processor and the buffers' types, which are checked.
template <typename Moments>
AdamWUpdate<Moments> AdamWUpdateFor(const AdamWBuffers& b) {
  if (b.gradient.scalar_type() == at::kFloat) {
    return AdamWUpdateFor<Moments, float>(b.working);
  }
  return b.gradient.scalar_type() == at::kBFloat16
             ? AdamWUpdateFor<Moments, at::BFloat16>(b.working)
             : AdamWUpdateFor<Moments, at::Half>(b.working);
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_ADAMW_LOOPS_H_
