// SPDX-License-Identifier: Apache-2.0
//
// The steps of a fused transformer block, on float32 in memory, but for the
// attention's (attention_loops.h).
#ifndef CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_STEPS_H_
#define CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_STEPS_H_

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "kernels/fast_path.h"
#include "kernels/layers/transformer_block_memory.h"

namespace capstan {
namespace kernels {

template <typename Body>
void ForRows(int64_t rows, int64_t width, const Body& body) {
  at::parallel_for(0, rows, RowGrain(width), body);
}

// out [rows, n] = x W^T + beta * out, for W [n, width].
void Project(const float* x, int64_t rows, int64_t width, const at::Tensor& w,
             float beta, float* out);

// dx [rows, width] = dy W + beta * dx, for W [n, width].
void ProjectBack(const float* dy, int64_t rows, const at::Tensor& w, float beta,
                 float* dx);

// RmsNorm of x [rows, hidden]; rstd: [rows].
void Normalise(const TransformerBlockDims& d, const float* x,
               const at::Tensor& weight, double eps, float* y, float* rstd);
// The same y, with rstd given.
void NormaliseAgain(const TransformerBlockDims& d, const float* x,
                    const at::Tensor& weight, const float* rstd, float* y);
// dx = residual + the gradient to x; writes `weight_gradient` [hidden], if it
// isn't undefined.
void NormaliseBackward(const TransformerBlockDims& d, const float* dy,
                       const float* x, const at::Tensor& weight,
                       const float* rstd, const float* residual, float* dx,
                       const at::Tensor& weight_gradient);

// ApplyRope on x [rows, width]; sign: 1 forward, -1 backward.
void Rotate(const TransformerBlockDims& d, const at::Tensor& table, float sign,
            int64_t width, float* x);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_STEPS_H_
