// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_ADAMW_ADAMW_H_
#define CAPSTAN_KERNELS_ADAMW_ADAMW_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace capstan {
namespace kernels {

struct AdamWOptions {
  int64_t step = 1;  // 1 for the first update
  double learning_rate = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double gradient_scale = 1.0;
};

// One step of AdamW (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", 2019; the operations of torch.optim.AdamW) in one pass over
// memory:
//   g = gradient * gradient_scale
//   p *= 1 - lr * weight_decay
//   m += (1 - beta1) * (g - m)
//   v = beta2 * v + (1 - beta2) * g * g
//   p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + epsilon)
// and `working`, if defined, becomes p in its own dtype. All tensors are 1-D,
// contiguous, on CPU and of one length: `parameter`, `exp_avg` (m) and
// `exp_avg_sq` (v) float32; `gradient` float32, bfloat16 or float16; `working`
// undefined, bfloat16 or float16. Uses LibTorch's intra-op threads; an
// element's result depends neither on their number nor on where it lies.
void AdamWStep(const AdamWOptions& options, const at::Tensor& gradient,
               const at::Tensor& parameter, const at::Tensor& exp_avg,
               const at::Tensor& exp_avg_sq, const at::Tensor& working);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_ADAMW_ADAMW_H_
