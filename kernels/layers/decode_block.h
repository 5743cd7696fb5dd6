// SPDX-License-Identifier: Apache-2.0
//
// A transformer block for generation on the CPU: CachedTransformerBlock without
// autograd's nodes, in one piece of memory that a thread's blocks share, with
// products that read each matrix once from where it lies (kernels/decode).
#ifndef CAPSTAN_KERNELS_LAYERS_DECODE_BLOCK_H_
#define CAPSTAN_KERNELS_LAYERS_DECODE_BLOCK_H_

#include <ATen/core/Tensor.h>

#include "kernels/layers/transformer_block.h"

namespace capstan::kernels {

// Whether DecodeBlock can take x: float32 on the CPU, without gradients.
bool CanDecode(const at::Tensor& x);

// As CachedTransformerBlock. For one new token a sequence, attention reads the
// cache as it lies; for more, as CachedAttention does.
at::Tensor DecodeBlock(const at::Tensor& x,
                       const TransformerBlockWeights& weights,
                       const TransformerBlockOptions& options,
                       const AppendKeyValue& append, const at::Tensor& first);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_DECODE_BLOCK_H_
