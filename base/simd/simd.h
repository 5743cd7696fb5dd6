// SPDX-License-Identifier: Apache-2.0
//
// Inner loops of the fused operators, on rows in memory, per instruction set.
// Single-threaded. Arithmetic is float32 for float32, bfloat16 and float16 in
// memory; stores round to nearest, ties to even. NaN stays NaN.
#ifndef CAPSTAN_BASE_SIMD_SIMD_H_
#define CAPSTAN_BASE_SIMD_SIMD_H_

#include <cstdint>
#include <type_traits>

#include "base/simd/instruction_set.h"

namespace capstan::kernels {

// A 16-bit number in memory: bfloat16 or IEEE 754 binary16.
struct Bf16 {
  uint16_t bits;
};
struct Fp16 {
  uint16_t bits;
};

// Loops on rows of T: float, Bf16 or Fp16. Matrices are row-major; `n` and
// `rows` may be 0.
template <typename T>
struct RowKernels {
  // y = weight * (x * rstd), with rstd[r] = 1 / sqrt(mean(x[r]^2) + eps).
  // x * rstd is rounded to T before the weight. y may be x.
  void (*rms_norm)(const T *x, const T *weight, float eps, int64_t rows,
                   int64_t n, T *y, float *rstd);
  // The same y, given rstd.
  void (*rms_norm_again)(const T *x, const T *weight, const float *rstd,
                         int64_t rows, int64_t n, T *y);
  // dx = residual + d(loss)/dx, dweight += d(loss)/dweight. `residual` and
  // `dweight` may be null; dx may be dy or residual.
  void (*rms_norm_backward)(const T *dy, const T *x, const T *weight,
                            const float *rstd, const T *residual, int64_t rows,
                            int64_t n, T *dx, float *dweight);
  // dweight alone, for n columns of rows `stride` apart; bit-equal to the
  // above.
  void (*rms_norm_weight_gradient)(const T *dy, const T *x, const float *rstd,
                                   int64_t rows, int64_t stride, int64_t n,
                                   float *dweight);
  // The first three with a float32 weight, before which nothing is rounded.
  void (*rms_norm_wide)(const T *x, const float *weight, float eps,
                        int64_t rows, int64_t n, T *y, float *rstd);
  void (*rms_norm_again_wide)(const T *x, const float *weight,
                              const float *rstd, int64_t rows, int64_t n, T *y);
  void (*rms_norm_backward_wide)(const T *dy, const T *x, const float *weight,
                                 const float *rstd, const T *residual,
                                 int64_t rows, int64_t n, T *dx,
                                 float *dweight);

  // Rotates channels i and i + half of each of `heads` vectors of 2 * half in
  // place, by `half` angles given as cosines and sines; sign -1 inverts the
  // rotation.
  void (*rotate)(const float *cosines, const float *sines, float sign,
                 int64_t heads, int64_t half, T *x);

  // out = silu(gate) * up, with silu(gate) rounded to T.
  void (*swiglu)(const T *gate, const T *up, int64_t n, T *out);
  // Replaces d_out with silu(gate) * up. The intermediate products silu(gate)
  // and d_out * up are rounded to T. d_gate may be gate, d_up may be up.
  void (*swiglu_backward)(const T *gate, const T *up, int64_t n, T *d_out,
                          T *d_gate, T *d_up);
  // The same with GELU's approximation by tanh (Hendrycks & Gimpel, "Gaussian
  // Error Linear Units", 2016, section 2) in place of silu.
  void (*geglu)(const T *gate, const T *up, int64_t n, T *out);
  void (*geglu_backward)(const T *gate, const T *up, int64_t n, T *d_out,
                         T *d_gate, T *d_up);

  // Returns log(sum(exp(x))) - x[target]. If `gradient`, replaces x with
  // (softmax(x) - one_hot(target)) * factor.
  float (*cross_entropy)(T *x, int64_t n, int64_t target, bool gradient,
                         float factor);

  // sum += x[rows[0]] + x[rows[1]] + .., `count` rows in order, for n columns
  // of a matrix with rows `stride` apart. In T, the sum is rounded once.
  void (*add_rows)(const T *x, const int64_t *rows, int64_t count,
                   int64_t stride, int64_t n, T *sum);
  void (*add_rows_wide)(const T *x, const int64_t *rows, int64_t count,
                        int64_t stride, int64_t n, float *sum);

  // y = x * factor.
  void (*scaled)(const float *x, float factor, int64_t n, T *y);
};

struct SimdKernels {
  const char *name;

  RowKernels<float> fp32;
  RowKernels<Bf16> bf16;
  RowKernels<Fp16> fp16;

  // Rows of n attention scores, `stride` apart (a multiple of 16, at least n).
  // Row r sees min(n, first + r + 1) columns: x becomes exp(x - max) there, 0
  // beyond. inverse_sum[r] and log_sum_exp[r] are of the visible part.
  void (*causal_exp)(float *scores, int64_t rows, int64_t n, int64_t stride,
                     int64_t first, float *inverse_sum, float *log_sum_exp);
  // Replaces the same rows with exp(x - log_sum_exp[r]), given log_sum_exp.
  void (*causal_softmax)(float *scores, int64_t rows, int64_t n, int64_t stride,
                         int64_t first, const float *log_sum_exp);
  // dp = p * (dp - delta[r]) * scale over whole rows.
  void (*softmax_backward)(const float *p, float *dp, int64_t rows,
                           int64_t stride, const float *delta, float scale);

  // x = cap * tanh(x / cap). slope: its derivative there; may be null.
  void (*softcap)(float *x, int64_t n, float cap, float *slope);

  void (*scale)(float *x, int64_t n, float factor);
  // x *= factors.
  void (*multiply)(float *x, const float *factors, int64_t n);
  float (*dot)(const float *a, const float *b, int64_t n);

  // The loops for T.
  template <typename T>
  const RowKernels<T> &rows() const {
    if constexpr (std::is_same_v<T, float>) {
      return fp32;
    } else if constexpr (std::is_same_v<T, Bf16>) {
      return bf16;
    } else {
      return fp16;
    }
  }
};

SIMD_TABLES(SimdKernels, kSimd);
#ifdef __x86_64__
// kSimdAvx512's results, with the processor's conversion to bfloat16. Needs
// HasBf16Products().
extern const SimdKernels kSimdAvx512Bf16;
#endif

// The best for this processor.
inline const SimdKernels &Simd() {
#ifdef __x86_64__
  if (HasBf16Products()) return kSimdAvx512Bf16;
#endif
  return kSimd.best();
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_BASE_SIMD_SIMD_H_
