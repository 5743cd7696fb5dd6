// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "kernels/context/witness.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw_loops.h"
#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

constexpr char kName[] = "AdamW";

struct FloatMoments {
  using Stored = float;
  static ALWAYS_INLINE float Read(float stored) { return stored; }
  ALWAYS_INLINE void Write(int64_t /*i*/, float m, float v, float* exp_avg,
                           float* exp_avg_sq) const {
    *exp_avg = m;
    *exp_avg_sq = v;
  }
};

void WitnessedStep(const cuda::AdamWFactors& factors, const AdamWBuffers& b,
                   UpdateWitness* witness) {
  const AdamWMemory<float> memory(b);
  const auto update = AdamWUpdateFor<FloatMoments>(b);
  constexpr int64_t kBlock = WordSums::kBlock;
  const int64_t n = b.parameter.numel();
  at::parallel_for(
      0, (n + kBlock - 1) / kBlock, 1, [&](int64_t block, int64_t last) {
        for (; block < last; ++block) {
          const int64_t begin = block * kBlock;
          const int64_t end = std::min(n, begin + kBlock);
          witness->BeforeBlock(memory.parameter + begin, end - begin);
          update(factors, memory, FloatMoments(), begin, end);
          witness->AfterBlock(memory.parameter + begin, end - begin);
        }
      });
}

}  // namespace

void AdamWByKernel(const cuda::CudaKernels& cuda, const AdamWOptions& options,
                   const AdamWBuffers& b, uint64_t key, int64_t begin) {
  const bool is_float = b.exp_avg.scalar_type() == at::kFloat;
  CheckAdamWBuffers(kName, b, is_float ? at::kFloat : at::kBFloat16);
  cuda::AdamWArgs args = {};
  SetAdamWArgs(kName, options, b, &args);
  args.state_dtype = cuda::TypeOf(b.exp_avg);
  args.exp_avg = b.exp_avg.mutable_data_ptr();
  args.exp_avg_sq = b.exp_avg_sq.mutable_data_ptr();
  args.key = key;
  args.begin = begin;
  const char* error =
      cuda.adamw(args, cuda.current_stream(b.parameter.get_device()));
  TORCH_CHECK(error == nullptr, "the GPU kernel adamw can't run: ", error);
}

void AdamWByLibTorch(const AdamWOptions& o, const AdamWBuffers& b) {
  const at::Tensor scaled =
      GuardedStep(o.gradient_scale, b.device_scale).Scaled(b.gradient);
  std::optional<at::Tensor> found_inf;
  if (b.device_scale.defined()) {
    found_inf = (~at::isfinite(b.device_scale)).to(at::kFloat);
  }
  const at::Tensor step =
      at::full({}, static_cast<double>(o.step), b.parameter.options());
  at::_fused_adamw_({b.parameter}, {scaled}, {b.exp_avg}, {b.exp_avg_sq}, {},
                    {step}, o.learning_rate, o.beta1, o.beta2, o.weight_decay,
                    o.epsilon, /*amsgrad=*/false, /*maximize=*/false,
                    /*grad_scale=*/std::nullopt, found_inf);
  if (b.working.defined()) b.working.copy_(b.parameter);
}

void AdamWStep(const AdamWOptions& options, const AdamWBuffers& b) {
  CheckAdamWBuffers(kName, b, at::kFloat);
  if (const auto* cuda = cuda::For(b.parameter)) {
    return AdamWByKernel(*cuda, options, b);
  }
  if (!b.parameter.is_cpu()) return AdamWByLibTorch(options, b);
  const absl::optional<cuda::AdamWFactors> factors =
      AdamWFactorsOnHost(options, b.device_scale);
  if (!factors.has_value()) return;
  const AdamWMemory<float> memory(b);
  UpdateWitness* const witness = CurrentUpdateWitness();
  if (witness != nullptr && witness->Knows(memory.parameter)) {
    return WitnessedStep(*factors, b, witness);
  }
  const auto update = AdamWUpdateFor<FloatMoments>(b);
  at::parallel_for(0, b.parameter.numel(), kAdamWGrain,
                   [&](int64_t begin, int64_t end) {
                     update(*factors, memory, FloatMoments(), begin, end);
                   });
}

}  // namespace capstan::kernels
