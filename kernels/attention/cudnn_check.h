// SPDX-License-Identifier: Apache-2.0
//
// Whether cuDNN's attention is right on this machine. LibTorch chooses it for
// rows that aren't packed on compute capability 9.0 and 10.0; it is a library
// of its own, which makes its kernels at run time and may refuse to, and
// releases of it have returned wrong gradients for some shapes.
#ifndef CAPSTAN_KERNELS_ATTENTION_CUDNN_CHECK_H_
#define CAPSTAN_KERNELS_ATTENTION_CUDNN_CHECK_H_

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <string>

#include "kernels/attention/attention.h"

namespace capstan::kernels {

// To be called before Attention(q, k, v, shape) leaves the choice to LibTorch.
// The first time that this is cuDNN's for heads like these, compares it with
// the flash kernels on a made-up sequence, for which the host waits once. If it
// refuses or differs, it is switched off in at::Context, which leaves the flash
// kernels for the rest of the process, and a warning says why.
void CheckCudnnAttention(const at::Tensor& q, const at::Tensor& k,
                         const at::Tensor& v, const AttentionShape& shape);

// The comparison, of one sequence of `length` tokens, some hundreds: why
// cuDNN's attention can't be used; "" if it can. options: of q, 16-bit.
std::string CudnnAttentionFault(const AttentionShape& shape, int64_t length,
                                const at::TensorOptions& options);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_CUDNN_CHECK_H_
