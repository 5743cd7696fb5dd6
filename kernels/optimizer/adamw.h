// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_OPTIMIZER_ADAMW_H_
#define CAPSTAN_KERNELS_OPTIMIZER_ADAMW_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace capstan::kernels {

struct AdamWOptions {
  int64_t step = 1;  // 1 for the first update
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
};

// All 1-D, contiguous, of one length and on one device; `parameter`, `exp_avg`
// (m) and `exp_avg_sq` (v) are float32 and updated in place.
struct AdamWBuffers {
  at::Tensor gradient;  // float32, bfloat16 or float16
  at::Tensor parameter;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  at::Tensor working;  // undefined, bfloat16 or float16
  // Undefined, or a float32 scalar on that device that also multiplies
  // gradients. If it isn't finite, nothing is written.
  at::Tensor device_scale;
};

// One step of AdamW (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019; the operations of torch.optim.AdamW) in one pass over
// memory:
//   g = gradient * gradient_scale * device_scale
//   p *= 1 - lr * weight_decay
//   m += (1 - beta1) * (g - m)
//   v = beta2 * v + (1 - beta2) * g * g
//   p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
// `working`, if defined, becomes p in its own dtype. Bits depend neither on the
// number of threads nor on an element's offset. On CPU it runs on LibTorch's
// intra-op threads; on a GPU on the current stream, without blocking, by our
// kernel or, where that is unavailable, by LibTorch's with the same bits.
void AdamWStep(const AdamWOptions& options, const AdamWBuffers& buffers);

namespace cuda {
struct CudaKernels;
}
// The two implementations for GPUs: our kernel, which also updates state in
// bfloat16 (adamw_bf16.h: key, begin), and LibTorch's fused one, which supports
// any device.
void AdamWByKernel(const cuda::CudaKernels& cuda, const AdamWOptions& options,
                   const AdamWBuffers& buffers, uint64_t key = 0,
                   int64_t begin = 0);
void AdamWByLibTorch(const AdamWOptions& options, const AdamWBuffers& buffers);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_ADAMW_H_
