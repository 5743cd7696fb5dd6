// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_EMBEDDING_GRADIENT_H_
#define CAPSTAN_KERNELS_LAYERS_EMBEDDING_GRADIENT_H_

#include <ATen/core/Tensor.h>

namespace capstan::kernels {

// d_weight[tokens[r]] += dy[r] for each row r, without autograd; rows of other
// tokens aren't touched. dy: [rows, hidden]; tokens: [rows] int64 in [0,
// vocab); d_weight: [vocab, hidden] contiguous, float32 or of dy's dtype. Each
// sum is computed in float32, in the order of rows, and rounded once: on CPU
// the bits don't depend on the number of threads.
void AddEmbeddingGradient(const at::Tensor& dy, const at::Tensor& tokens,
                          at::Tensor& d_weight);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_EMBEDDING_GRADIENT_H_
