// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>

#include <optional>

#include "kernels/cuda/dispatch.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/factors.h"

namespace capstan::kernels {
namespace {

// A buffer's memory; null if it is undefined.
void* Memory(const at::Tensor& t, const at::Tensor& parameter) {
  if (!t.defined()) return nullptr;
  TORCH_CHECK(t.numel() == parameter.numel() && t.is_contiguous() &&
                  t.device() == parameter.device(),
              "AdamW wants contiguous buffers of one length on one device");
  return t.mutable_data_ptr();
}

float* Floats(const at::Tensor& t, const at::Tensor& parameter) {
  TORCH_CHECK(t.scalar_type() == at::kFloat,
              "AdamW's parameter and state must be float32");
  return static_cast<float*>(Memory(t, parameter));
}

}  // namespace

void AdamWByKernel(const cuda::CudaKernels& cuda, const AdamWOptions& options,
                   const AdamWBuffers& b) {
  const AdamWFactors f = MakeAdamWFactors(options);
  cuda::AdamWArgs args = {};
  args.gradient_dtype = cuda::TypeOf(b.gradient);
  args.gradient = Memory(b.gradient, b.parameter);
  args.parameter = Floats(b.parameter, b.parameter);
  args.exp_avg = Floats(b.exp_avg, b.parameter);
  args.exp_avg_sq = Floats(b.exp_avg_sq, b.parameter);
  args.working_dtype = cuda::TypeOf(b.working);
  args.working = Memory(b.working, b.parameter);
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
  args.gradient_scale = f.gradient_scale;
  args.decay = f.decay;
  args.weight1 = f.weight1;
  args.beta2 = f.beta2;
  args.weight2 = f.weight2;
  args.rate = f.rate;
  args.root2 = f.root2;
  args.epsilon = f.epsilon;
  args.n = b.parameter.numel();
  const char* error =
      cuda.adamw(args, cuda.current_stream(b.parameter.get_device()));
  TORCH_CHECK(error == nullptr, "the GPU kernel adamw can't run: ", error);
}

void AdamWByLibTorch(const AdamWOptions& o, const AdamWBuffers& b) {
  at::Tensor scaled = b.gradient.to(at::kFloat) * o.gradient_scale;
  std::optional<at::Tensor> found_inf;
  if (b.device_scale.defined()) {
    scaled.mul_(b.device_scale);
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

}  // namespace capstan::kernels
