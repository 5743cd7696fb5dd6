// SPDX-License-Identifier: Apache-2.0
//
// The inner loops of a fused encoder block (encoder_block.h) on float32 rows in
// memory, per instruction set (base/simd). Single-threaded.
//
// Dropout bits: bit i % 16 of group i / 16 says whether number i is kept, and
// multiplied by `factor`; null: no dropout. Widths are multiples of 16, so
// groups of consecutive rows are contiguous.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_SIMD_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_SIMD_H_

#include <cstdint>

#include "base/simd/instruction_set.h"

namespace capstan::kernels {

// sum = residual + dropout(sum + bias), and
// out = weight * (sum - mean) * rstd + shift, with mean and
// rstd = 1 / sqrt(variance + eps) of each row.
struct AddNormRows {
  int64_t rows = 0, n = 0;
  const float* residual = nullptr;
  const float* bias = nullptr;
  const uint16_t* keep = nullptr;
  float factor = 1.0f;
  const float* weight = nullptr;
  const float* shift = nullptr;
  float eps = 0.0f;
  float* sum = nullptr;   // [rows, n]
  float* mean = nullptr;  // [rows]
  float* rstd = nullptr;  // [rows]
  float* out = nullptr;   // [rows, n]
};

// Its gradients, given d_out: written to residual and to the former `sum`
// (d_product), added to weight, shift and bias. d_residual may be d_out.
struct AddNormGradients {
  const float* d_out = nullptr;
  float* d_residual = nullptr;
  float* d_product = nullptr;
  float* d_weight = nullptr;
  float* d_shift = nullptr;
  float* d_bias = nullptr;
};

// Rows of one head's attention scores, `stride` floats apart. Row r sees
// columns up to first + r; the rest, up to the stride, become 0. Dropout bits:
// (first + r) / 16 + 1 groups for row r.
struct ScoreRows {
  int64_t rows = 0, stride = 0, first = 0;
  const uint16_t* keep = nullptr;
  float factor = 1.0f;
  float* scores = nullptr;
};

// A product of one head's rows; strides in floats. n: a multiple of 16.
struct HeadProduct {
  int64_t rows = 0, columns = 0, n = 0;
  float factor = 1.0f;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

struct EncoderKernels {
  const char* name;

  // Dropout bits, groups [first, first + groups). Number i is dropped if 16
  // random bits are below `threshold`: half i % 2 of word i % 128 / 32 of
  // RandomBits(key, i / 128 * 16 + i % 32 / 2, sample).
  void (*keep_bits)(uint64_t key, uint64_t sample, int64_t first,
                    int64_t groups, uint16_t threshold, uint16_t* bits);

  // x += bias in each row.
  void (*add_bias)(const float* bias, int64_t rows, int64_t n, float* x);
  // sum += each row of x.
  void (*add_rows)(const float* x, int64_t rows, int64_t n, float* sum);

  void (*add_norm)(const AddNormRows& p);
  // Recomputes `out` from sum, mean and rstd.
  void (*norm_again)(const AddNormRows& p);
  void (*add_norm_backward)(const AddNormRows& p, const AddNormGradients& g);

  // h += bias; out = dropout(gelu(h)), gelu(h) = h * P(z < h), z standard
  // normal (Hendrycks and Gimpel, 2016); P is accurate to 3e-7.
  void (*gelu)(const float* bias, const uint16_t* keep, float factor,
               int64_t rows, int64_t n, float* h, float* out);
  // h becomes the same `out`; d, the gradient to it, becomes the gradient to h,
  // which is also added to d_bias.
  void (*gelu_backward)(const uint16_t* keep, float factor, int64_t rows,
                        int64_t n, float* h, float* d, float* d_bias);

  // out [n, out_stride] = the transpose of x [rows, n], 0 from column `rows`
  // on; out_stride: a multiple of 16, at least `rows`.
  void (*transpose)(const float* x, int64_t x_stride, int64_t rows, int64_t n,
                    float* out, int64_t out_stride);
  // out [rows, columns] = factor * a [rows, n] b [n, columns]; columns: a
  // multiple of 16.
  void (*scores)(const HeadProduct& p);
  // out [rows, n] = a [rows, columns] b [columns, n].
  void (*mix)(const HeadProduct& p);
  // out [columns, n] = a^T b + factor * out, for a [rows, columns] and b [rows,
  // n]; factor: 0 or 1.
  void (*mix_back)(const HeadProduct& p);

  // x becomes dropout(exp(x - max)); inverse_sum[r] is 1 / the sum of exp(x -
  // max).
  void (*softmax)(const ScoreRows& p, float* inverse_sum, float* log_sum_exp);
  // With p = exp(x - log_sum_exp): x becomes dropout(p); d, as the gradient to
  // that, becomes p * (dropout(d) - delta[r]) * scale.
  void (*softmax_backward)(const ScoreRows& p, const float* log_sum_exp,
                           const float* delta, float scale, float* d);
};

SIMD_TABLES(EncoderKernels, kEncoder);

// The best for this processor.
inline const EncoderKernels& EncoderSimd() { return kEncoder.best(); }

}  // namespace capstan::kernels

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_SIMD_H_
