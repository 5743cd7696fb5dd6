// SPDX-License-Identifier: Apache-2.0
//
// Products of float32 rows with matrices of fewer bits on the CPU, for models
// that generate with their weights as a file has them: bfloat16, float16 or
// int8 with a scale a row. A weight is converted where it is multiplied, which
// is exact for the 16-bit types, and sums are float32: the result is that of
// the same values as float32, but for the order of sums. For bfloat16 matrices,
// x is rounded, and W multiplied as it is, where Gemm does that (RoundsToBf16);
// neither y nor anything between products is rounded. Without autograd.
#ifndef CAPSTAN_KERNELS_LAYERS_MIXED_LINEAR_H_
#define CAPSTAN_KERNELS_LAYERS_MIXED_LINEAR_H_

#include <ATen/core/Tensor.h>

#include "kernels/decode/few_rows.h"
#include "kernels/layers/weight.h"

namespace capstan::kernels {

// Whether a dense matrix on the CPU is of fewer bits than float32 activations.
bool IsMixed(const at::Tensor& x, const Weight& weight);

// A dense matrix on the CPU, with dense rows, in its memory.
StoredMatrix StoredOf(const Weight& weight);

// y [rows, out] = x W^T + beta * y with beta 0 or 1, for float32 x [rows, in]
// and a dense W of any of the types, float32 included. Rows of x and y may be
// apart.
void StoredLinearInto(const at::Tensor& y, const at::Tensor& x,
                      const Weight& weight, double beta = 0.0);

// The same in memory; y's rows are out apart.
void StoredLinearInto(const float* x, int64_t x_stride, int64_t rows,
                      const FewRowsProduct& product);

// Rows of an embedding of any of the types: [tokens, in] float32, for int64
// tokens on the CPU in [0, out).
at::Tensor StoredRows(const Weight& weight, const at::Tensor& tokens);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_MIXED_LINEAR_H_
