// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of the fused operators, on rows in memory. They are compiled
// for several instruction sets, and the best one that the processor has is
// taken at run time. One thread each; callers divide the work.
//
// Numbers are stored as float32, bfloat16 or float16; arithmetic is float32,
// and what is stored is rounded to the nearest, ties to even. NaN stays NaN.
#ifndef CAPSTAN_BASE_SIMD_SIMD_H_
#define CAPSTAN_BASE_SIMD_SIMD_H_

#include <cstdint>

#include "base/simd/instruction_set.h"

namespace capstan {
namespace kernels {

// A 16-bit number in memory: bfloat16, or IEEE 754 binary16.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

// On rows of T: float, Bf16 or Fp16. Matrices are row-major; `n` and `rows` may
// be any number from 0 on.
template <typename T>
struct RowKernels {
  // y = weight * (x * rstd), with rstd[r] = 1 / sqrt(mean(x[r]^2) + eps).
  // x * rstd is rounded to T before the weight. y may be x.
  void (*rms_norm)(const T *x, const T *weight, float eps, int64_t rows,
                   int64_t n, T *y, float *rstd);
  // sum = x + residual, and y of that sum, which may be x or residual.
  void (*rms_norm_add)(const T *x, const T *residual, const T *weight,
                       float eps, int64_t rows, int64_t n, T *sum, T *y,
                       float *rstd);
  // The same y with rstd given.
  void (*rms_norm_again)(const T *x, const T *weight, const float *rstd,
                         int64_t rows, int64_t n, T *y);
  // dx = residual + d(loss)/dx, dweight += d(loss)/dweight. `residual` and
  // `dweight` may be null; dx may be dy or residual.
  void (*rms_norm_backward)(const T *dy, const T *x, const T *weight,
                            const float *rstd, const T *residual, int64_t rows,
                            int64_t n, T *dx, float *dweight);
  // dweight alone, of n columns of rows that are `stride` apart; the same bits.
  void (*rms_norm_weight_gradient)(const T *dy, const T *x, const float *rstd,
                                   int64_t rows, int64_t stride, int64_t n,
                                   float *dweight);

  // Rotates channel i with i + half of each of `heads` vectors of 2 * half, by
  // `half` angles given as cosines and sines, in place; back if sign is -1.
  void (*rotate)(const float *cosines, const float *sines, float sign,
                 int64_t heads, int64_t half, T *x);

  // out = silu(gate) * up, with silu(gate) rounded to T.
  void (*swiglu)(const T *gate, const T *up, int64_t n, T *out);
  // d_out is replaced by silu(gate) * up. What is multiplied further,
  // silu(gate) and d_out * up, is rounded to T before. d_gate may be gate, d_up
  // may be up.
  void (*swiglu_backward)(const T *gate, const T *up, int64_t n, T *d_out,
                          T *d_gate, T *d_up);

  // log(sum(exp(x))) - x[target]. If `gradient`, x becomes softmax(x) with 1
  // taken from x[target], times `factor`.
  float (*cross_entropy)(T *x, int64_t n, int64_t target, bool gradient,
                         float factor);

  // sum += x[rows[0]] + x[rows[1]] + .., one after another, `count` in all, of
  // n columns of a matrix whose rows are `stride` apart. In T, the sum is
  // rounded once.
  void (*add_rows)(const T *x, const int64_t *rows, int64_t count,
                   int64_t stride, int64_t n, T *sum);
  void (*add_rows_wide)(const T *x, const int64_t *rows, int64_t count,
                        int64_t stride, int64_t n, float *sum);
};

struct SimdKernels {
  const char *name;

  RowKernels<float> fp32;
  RowKernels<Bf16> bf16;
  RowKernels<Fp16> fp16;

  // Rows of n attention scores, `stride` apart: a multiple of 16, at least n.
  // Row r has min(n, first + r + 1) visible columns: x becomes exp(x - max)
  // there and 0 from there to the stride; inverse_sum[r] and log_sum_exp[r]
  // are those of the visible part.
  void (*causal_exp)(float *scores, int64_t rows, int64_t n, int64_t stride,
                     int64_t first, float *inverse_sum, float *log_sum_exp);
  // The same rows to exp(x - log_sum_exp[r]), with log_sum_exp given.
  void (*causal_softmax)(float *scores, int64_t rows, int64_t n, int64_t stride,
                         int64_t first, const float *log_sum_exp);
  // dp = p * (dp - delta[r]) * scale on the whole of such rows.
  void (*softmax_backward)(const float *p, float *dp, int64_t rows,
                           int64_t stride, const float *delta, float scale);

  void (*scale)(float *x, int64_t n, float factor);
  float (*dot)(const float *a, const float *b, int64_t n);

  // Those of T.
  template <typename T>
  const RowKernels<T> &rows() const;
};

template <>
inline const RowKernels<float> &SimdKernels::rows<float>() const {
  return fp32;
}
template <>
inline const RowKernels<Bf16> &SimdKernels::rows<Bf16>() const {
  return bf16;
}
template <>
inline const RowKernels<Fp16> &SimdKernels::rows<Fp16>() const {
  return fp16;
}

SIMD_TABLES(SimdKernels, kSimd);

// The best for this processor.
inline const SimdKernels &Simd() { return kSimd.best(); }

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_BASE_SIMD_SIMD_H_
