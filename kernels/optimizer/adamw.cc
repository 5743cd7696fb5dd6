// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/adamw.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cmath>
#include <optional>
#include <type_traits>

#include "base/simd/instruction_set.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw_factors.h"
#include "kernels/optimizer/guarded_step.h"

namespace capstan::kernels {
namespace {

// Elements per thread, below which waking one costs more than it saves.
constexpr int64_t kGrain = 32768;

using cuda::AdamWFactors;

struct Memory {
  const void* gradient;
  float* parameter;
  float* exp_avg;
  float* exp_avg_sq;
  void* working;
};

// No working copy.
using Nothing = char;

// Vectorised, with c10's conversions, too.

template <typename Gradient, typename Working>
inline __attribute__((always_inline)) void UpdateRange(
    const AdamWFactors& factors, const Memory& buffers, int64_t begin,
    int64_t end) {
  const AdamWFactors f = factors;
  const auto* __restrict gradient =
      static_cast<const Gradient*>(buffers.gradient);
  float* __restrict parameter = buffers.parameter;
  float* __restrict exp_avg = buffers.exp_avg;
  float* __restrict exp_avg_sq = buffers.exp_avg_sq;
  auto* __restrict working = static_cast<Working*>(buffers.working);
  for (int64_t i = begin; i < end; ++i) {
    const float g = static_cast<float>(gradient[i]) * f.gradient_scale;
    const float m = exp_avg[i] + f.weight1 * (g - exp_avg[i]);
    const float v = exp_avg_sq[i] * f.beta2 + f.weight2 * g * g;
    const float denominator = std::sqrt(v) / f.root2 + f.epsilon;
    const float p = parameter[i] * f.decay - f.rate * m / denominator;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    parameter[i] = p;
    if constexpr (!std::is_same_v<Working, Nothing>) {
      working[i] = static_cast<Working>(p);
    }
  }
}

using UpdateFn = void (*)(const AdamWFactors& factors, const Memory& buffers,
                          int64_t begin, int64_t end);

template <typename Gradient, typename Working>
void UpdatePlain(const AdamWFactors& factors, const Memory& buffers,
                 int64_t begin, int64_t end) {
  UpdateRange<Gradient, Working>(factors, buffers, begin, end);
}

template <typename Gradient, typename Working>
SIMD_FUNCTION_AVX2 void UpdateAvx2(const AdamWFactors& factors,
                                   const Memory& buffers, int64_t begin,
                                   int64_t end) {
  UpdateRange<Gradient, Working>(factors, buffers, begin, end);
}

template <typename Gradient, typename Working>
SIMD_FUNCTION_AVX512 void UpdateAvx512(const AdamWFactors& factors,
                                       const Memory& buffers, int64_t begin,
                                       int64_t end) {
  UpdateRange<Gradient, Working>(factors, buffers, begin, end);
}

template <typename Gradient, typename Working>
UpdateFn ChooseForProcessor() {
  return BestOf<UpdateFn>(UpdatePlain<Gradient, Working>,
                          UpdateAvx2<Gradient, Working>,
                          UpdateAvx512<Gradient, Working>);
}

template <typename Gradient>
UpdateFn ChooseForWorking(const at::Tensor& working) {
  if (!working.defined()) return ChooseForProcessor<Gradient, Nothing>();
  if (working.scalar_type() == at::kBFloat16) {
    return ChooseForProcessor<Gradient, at::BFloat16>();
  }
  TORCH_CHECK(working.scalar_type() == at::kHalf,
              "AdamW can't write working weights of ", working.scalar_type());
  return ChooseForProcessor<Gradient, at::Half>();
}

UpdateFn Choose(const at::Tensor& gradient, const at::Tensor& working) {
  switch (gradient.scalar_type()) {
    case at::kFloat:
      return ChooseForWorking<float>(working);
    case at::kBFloat16:
      return ChooseForWorking<at::BFloat16>(working);
    case at::kHalf:
      return ChooseForWorking<at::Half>(working);
    default:
      TORCH_CHECK(false, "AdamW can't read gradients of ",
                  gradient.scalar_type());
  }
}

void StepOnCpu(const AdamWOptions& options, const AdamWBuffers& b) {
  const absl::optional<AdamWFactors> factors =
      AdamWFactorsOnHost(options, b.device_scale);
  if (!factors.has_value()) return;
  const int64_t length = b.parameter.numel();
  for (const at::Tensor* t :
       {&b.gradient, &b.parameter, &b.exp_avg, &b.exp_avg_sq, &b.working}) {
    TORCH_CHECK(!t->defined() ||
                    (t->is_cpu() && t->is_contiguous() && t->numel() == length),
                "AdamW wants contiguous buffers of one length on the CPU");
  }
  const Memory memory = {
      b.gradient.const_data_ptr(), b.parameter.mutable_data_ptr<float>(),
      b.exp_avg.mutable_data_ptr<float>(),
      b.exp_avg_sq.mutable_data_ptr<float>(),
      b.working.defined() ? b.working.mutable_data_ptr() : nullptr};
  const UpdateFn update = Choose(b.gradient, b.working);
  at::parallel_for(0, length, kGrain, [&](int64_t begin, int64_t end) {
    update(*factors, memory, begin, end);
  });
}

// For the GPU.

// A buffer's memory; null if it is undefined.
void* DataOf(const at::Tensor& t, const at::Tensor& parameter) {
  if (!t.defined()) return nullptr;
  TORCH_CHECK(t.numel() == parameter.numel() && t.is_contiguous() &&
                  t.device() == parameter.device(),
              "AdamW wants contiguous buffers of one length on one device");
  return t.mutable_data_ptr();
}

float* Floats(const at::Tensor& t, const at::Tensor& parameter) {
  TORCH_CHECK(t.scalar_type() == at::kFloat,
              "AdamW's parameter and state must be float32");
  return static_cast<float*>(DataOf(t, parameter));
}

}  // namespace

void AdamWByKernel(const cuda::CudaKernels& cuda, const AdamWOptions& options,
                   const AdamWBuffers& b) {
  cuda::AdamWArgs args = {};
  args.gradient_dtype = cuda::TypeOf(b.gradient);
  args.gradient = DataOf(b.gradient, b.parameter);
  args.parameter = Floats(b.parameter, b.parameter);
  args.exp_avg = Floats(b.exp_avg, b.parameter);
  args.exp_avg_sq = Floats(b.exp_avg_sq, b.parameter);
  args.working_dtype = cuda::TypeOf(b.working);
  args.working = DataOf(b.working, b.parameter);
  TORCH_CHECK(
      args.gradient_dtype != cuda::DType::kNone &&
          args.working_dtype != cuda::DType::kFloat32 &&
          b.working.defined() == (args.working_dtype != cuda::DType::kNone),
      "AdamW can't read these gradients or write these working weights");
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
