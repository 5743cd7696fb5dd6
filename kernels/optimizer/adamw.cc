// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>

#include <cstdint>
#include <optional>

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

void CheckBuffers(const AdamWBuffers& b) {
  CheckGradientAndWorking(kName, b.gradient, b.working, b.parameter);
  for (const at::Tensor& moment : {b.exp_avg, b.exp_avg_sq}) {
    CheckBuffer(kName, moment, b.parameter, b.parameter.numel(), at::kFloat);
  }
}

void StepOnCpu(const AdamWOptions& options, const AdamWBuffers& b) {
  CheckBuffers(b);
  const absl::optional<cuda::AdamWFactors> factors =
      AdamWFactorsOnHost(options, b.device_scale);
  if (!factors.has_value()) return;
  const AdamWMemory<float> memory(b);
  const auto update = AdamWUpdateFor<FloatMoments>(b);
  at::parallel_for(0, b.parameter.numel(), kAdamWGrain,
                   [&](int64_t begin, int64_t end) {
                     update(*factors, memory, FloatMoments(), begin, end);
                   });
}

}  // namespace

void AdamWByKernel(const cuda::CudaKernels& cuda, const AdamWOptions& options,
                   const AdamWBuffers& b) {
  CheckBuffers(b);
  const AdamWMemory<float> memory(b);
  cuda::AdamWArgs args = {};
  args.gradient_dtype = cuda::TypeOf(b.gradient);
  args.gradient = memory.gradient;
  args.parameter = memory.parameter;
  args.exp_avg = memory.exp_avg;
  args.exp_avg_sq = memory.exp_avg_sq;
  args.working_dtype = cuda::TypeOf(b.working);
  args.working = memory.working;
  if (b.device_scale.defined()) {
    TORCH_CHECK(b.device_scale.device() == b.parameter.device(),
                "AdamW's device_scale must be on the parameter's device");
    args.device_scale = b.device_scale.const_data_ptr<float>();
  }
  args.factors = AdamWFactorsOf(options);
  args.n = b.parameter.numel();
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

void AdamWStep(const AdamWOptions& options, const AdamWBuffers& buffers) {
  if (buffers.parameter.device().is_cpu()) return StepOnCpu(options, buffers);
  if (const auto* cuda = cuda::For(buffers.parameter)) {
    return AdamWByKernel(*cuda, options, buffers);
  }
  AdamWByLibTorch(options, buffers);
}

}  // namespace capstan::kernels
