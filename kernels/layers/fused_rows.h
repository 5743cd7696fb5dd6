// SPDX-License-Identifier: Apache-2.0
//
// What nodes compute between products on the CPU: loops on rows in memory of T
// (float, Bf16 or Fp16), divided among LibTorch's intra-op threads.
#ifndef CAPSTAN_KERNELS_LAYERS_FUSED_ROWS_H_
#define CAPSTAN_KERNELS_LAYERS_FUSED_ROWS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/fast_path.h"
#include "kernels/layers/block_parts.h"
#include "kernels/view_of.h"

namespace capstan::kernels {

// RmsNorm of x [rows, width], with the factor [width], which is of T, or
// float32 and then rounded once; rstd: [rows]. y may be x.
template <typename T>
void Normalise(const T* x, int64_t rows, const at::Tensor& factor, double eps,
               T* y, float* rstd);

// The same y, from a given rstd.
template <typename T>
void NormaliseAgain(const T* x, int64_t rows, const at::Tensor& factor,
                    const float* rstd, T* y);

template <typename T>
struct NormGradientBuffers {
  const T *dy, *x;
  const float* rstd;
  const T* residual;  // or null
  T* dx;              // may be dy
};

// dx = residual + the gradient to x [rows, width], computed in float32 and
// rounded once; writes `weight_gradient` [width] float32, if defined, whose
// bits depend on the number of threads unless `same_bits`.
template <typename T>
void NormaliseBackward(const NormGradientBuffers<T>& p, int64_t rows,
                       const at::Tensor& factor,
                       const at::Tensor& weight_gradient, bool same_bits);

// out = a + b of n numbers, rounded once; out may be either.
template <typename T>
void AddRows(const T* a, const T* b, int64_t n, T* out);

// out = act(gate) * up of n numbers; out may be either.
template <typename T>
void Gate(Activation activation, const T* gate, const T* up, int64_t n, T* out);

// Replaces d_out by act(gate) * up, and writes the gradients of gate and up,
// which may take their place.
template <typename T>
void GateBackward(Activation activation, const T* gate, const T* up, int64_t n,
                  T* d_out, T* d_gate, T* d_up);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_FUSED_ROWS_H_
