// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of the fused operators, on rows of float32 in memory. They
// are compiled for several instruction sets, and the best one that the
// processor has is taken at run time. One thread each; callers divide rows.
#ifndef CAPSTAN_KERNELS_SIMD_H_
#define CAPSTAN_KERNELS_SIMD_H_

#include <cstdint>

namespace capstan {
namespace kernels {

// Matrices are row-major; `n` and `rows` may be any number from 0 on.
struct SimdKernels {
  const char* name;

  // y = x * rstd * weight, with rstd[r] = 1 / sqrt(mean(x[r]^2) + eps).
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t rows,
                   int64_t n, float* y, float* rstd);
  // The same with rstd given.
  void (*rms_norm_again)(const float* x, const float* weight, const float* rstd,
                         int64_t rows, int64_t n, float* y);
  // dx = residual + d(loss)/dx, dweight += d(loss)/dweight. `residual` and
  // `dweight` may be null; dx may be dy or residual.
  void (*rms_norm_backward)(const float* dy, const float* x,
                            const float* weight, const float* rstd,
                            const float* residual, int64_t rows, int64_t n,
                            float* dx, float* dweight);

  // Rotates channel i with i + half of each of `heads` vectors of 2 * half, by
  // `half` angles given as cosines and sines, in place; back if sign is -1.
  void (*rotate)(const float* cosines, const float* sines, float sign,
                 int64_t heads, int64_t half, float* x);

  // out = silu(gate) * up.
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* out);
  // d_out is replaced by silu(gate) * up.
  void (*swiglu_backward)(const float* gate, const float* up, int64_t n,
                          float* d_out, float* d_gate, float* d_up);

  // log(sum(exp(x))) - x[target]. If `gradient`, x becomes softmax(x) with 1
  // taken from x[target].
  float (*cross_entropy)(float* x, int64_t n, int64_t target, bool gradient);

  // Rows of n attention scores, `stride` apart: a multiple of 16, at least n.
  // Row r has min(n, first + r + 1) visible columns: x becomes exp(x - max)
  // there and 0 from there to the stride; inverse_sum[r] and log_sum_exp[r]
  // are those of the visible part.
  void (*causal_exp)(float* scores, int64_t rows, int64_t n, int64_t stride,
                     int64_t first, float* inverse_sum, float* log_sum_exp);
  // The same rows to exp(x - log_sum_exp[r]), with log_sum_exp given.
  void (*causal_softmax)(float* scores, int64_t rows, int64_t n, int64_t stride,
                         int64_t first, const float* log_sum_exp);
  // dp = p * (dp - delta[r]) * scale on the whole of such rows.
  void (*softmax_backward)(const float* p, float* dp, int64_t rows,
                           int64_t stride, const float* delta, float scale);

  void (*scale)(float* x, int64_t n, float factor);
  float (*dot)(const float* a, const float* b, int64_t n);
};

// The best kernels for this processor.
const SimdKernels& Simd();

// Each set that this processor can run, the plain one first: for tests.
// Returns the number of sets, and writes that many (3 at most) to `sets`.
int RunnableSimdKernels(const SimdKernels* sets[3]);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_SIMD_H_
