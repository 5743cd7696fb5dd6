// SPDX-License-Identifier: Apache-2.0
//
// What all kinds of AdamW's state have in common: a step's constants, what
// kernels are given and, on CPUs, the loop over elements.
#ifndef CAPSTAN_KERNELS_OPTIMIZER_ADAMW_LOOPS_H_
#define CAPSTAN_KERNELS_OPTIMIZER_ADAMW_LOOPS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <cstdint>
#include <initializer_list>
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

// Throws unless they fit each other. state: the moments' dtype.
inline void CheckAdamWBuffers(const char* optimizer, const AdamWBuffers& b,
                              at::ScalarType state) {
  CheckGradientAndWorking(optimizer, b.gradient, b.working, b.parameter);
  for (const at::Tensor& moment : {b.exp_avg, b.exp_avg_sq}) {
    CheckBuffer(optimizer, moment, b.parameter, b.parameter.numel(), state);
  }
}

// Sets what AdamWArgs and AdamW8BitArgs have in common, from buffers that are
// checked. optimizer: its name.
template <typename Buffers, typename Args>
void SetAdamWArgs(const char* optimizer, const AdamWOptions& options,
                  const Buffers& b, Args* args) {
  args->gradient_dtype = cuda::TypeOf(b.gradient);
  args->gradient = b.gradient.const_data_ptr();
  args->parameter = b.parameter.template mutable_data_ptr<float>();
  args->working_dtype = cuda::TypeOf(b.working);
  if (b.working.defined()) args->working = b.working.mutable_data_ptr();
  if (b.device_scale.defined()) {
    CheckBuffer(optimizer, b.device_scale, b.parameter, 1, at::kFloat);
    args->device_scale = b.device_scale.template const_data_ptr<float>();
  }
  args->factors = AdamWFactorsOf(options);
  args->n = b.parameter.numel();
}

// For a GPU without our kernels: step(copies in host memory), and what it has
// written back.
template <typename Buffers, typename Step>
void OnHost(const Buffers& buffers,
            std::initializer_list<at::Tensor Buffers::*> written, Step step) {
  Buffers host;
  host.gradient = buffers.gradient.cpu();
  if (buffers.device_scale.defined()) {
    host.device_scale = buffers.device_scale.cpu();
  }
  for (const auto t : written) {
    if ((buffers.*t).defined()) host.*t = (buffers.*t).cpu();
  }
  step(host);
  for (const auto t : written) {
    if ((buffers.*t).defined()) (buffers.*t).copy_(host.*t);
  }
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
