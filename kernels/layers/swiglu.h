// SPDX-License-Identifier: Apache-2.0
//
// silu(gate) * up, the activation of a SwiGLU layer (Shazeer, "GLU Variants
// Improve Transformer", 2020), without autograd. All tensors are contiguous
// and of one shape and dtype.
#ifndef CAPSTAN_KERNELS_LAYERS_SWIGLU_H_
#define CAPSTAN_KERNELS_LAYERS_SWIGLU_H_

#include <ATen/core/Tensor.h>

namespace capstan::kernels {

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up);

struct SwiGluGradients {
  at::Tensor gate;
  at::Tensor up;
  at::Tensor activation;  // silu(gate) * up, which backward needs too
};
// Consumes `d_activation`, whose memory a result may reuse.
SwiGluGradients SwiGluBackward(const at::Tensor& gate, const at::Tensor& up,
                               at::Tensor d_activation);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_SWIGLU_H_
