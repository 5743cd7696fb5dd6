// SPDX-License-Identifier: Apache-2.0
//
// Products of float32 matrices in memory.
//
// On AMD's processors ours are 8 to 20 % faster than LibTorch's BLAS (MKL) at
// the sizes of a training step; on Intel's, MKL is used. CAPSTAN_GEMM=own or
// =blas in the environment overrides this for measurements.
#ifndef CAPSTAN_KERNELS_GEMM_GEMM_H_
#define CAPSTAN_KERNELS_GEMM_GEMM_H_

#include <cstdint>

#include "base/simd/instruction_set.h"

namespace capstan::kernels {

// A row-major matrix in memory: row i begins at data + i * stride floats.
struct ConstMatrix {
  const float* data;
  int64_t stride;
};
struct Matrix {
  float* data;
  int64_t stride;
};

// Which factor is passed transposed.
enum class Transpose { kNone, kLeft, kRight };

// c [m, n] = alpha * a b + beta * c, where a is [m, k] (kLeft: passed as [k,
// m]) and b is [k, n] (kRight: passed as [n, k]). A beta of 0 overwrites c.
// Runs on LibTorch's intra-op threads; on one thread inside at::parallel_for.
// Sizes and strides are below 2^31.
void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k, float alpha,
          ConstMatrix a, ConstMatrix b, float beta, Matrix c);

// A matrix that isn't in memory as floats. `read` writes its rows [row, row +
// rows) from column `column` on, `columns` of them, densely to `out`;
// thread-safe.
struct MatrixSource {
  void (*read)(const void* what, int64_t row, int64_t rows, int64_t column,
               int64_t columns, float* out) = nullptr;
  const void* what = nullptr;
};

// As Gemm with such a b, which is read a panel at a time where panels are made:
// the bits are those of Gemm with our own loops on its values. A part is read
// again for each 512 rows of c, at most.
void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k, float alpha,
          ConstMatrix a, const MatrixSource& b, float beta, Matrix c);

// The implementation in use: "avx512", "avx2" or "blas".
const char* GemmName();

// For gemm.cc: the loops of gemm_tiles.cc, one table per instruction set.

// As Gemm.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;  // all greater than 0
  float alpha = 1.0f;
  bool a_transposed = false;
  ConstMatrix a = {};
  bool b_transposed = false;
  ConstMatrix b = {};
  float beta = 0.0f;  // 0 overwrites c
  Matrix c = {};
  MatrixSource source = {};  // of b, if it isn't in memory
};

// The inner dimension is processed in blocks of at most this many terms; only
// this decides how an element's sum is rounded.
constexpr int64_t kGemmDepth = 384;
// Rows (or columns) of the smaller factor whose panels stay in the L2 cache:
// 512 * 384 floats are 768 KiB.
constexpr int64_t kGemmResident = 512;
// Floats of `space` for Run, besides those: one panel of the other factor, at
// most 32 wide; panels are written in whole vectors.
constexpr int64_t kGemmPanel = kGemmDepth * 32 + 32;
constexpr int64_t kGemmSpace =
    kGemmPanel + kGemmDepth * (kGemmResident + 32) + 32;
// What is read from a source before it is put into a panel, behind those.
constexpr int64_t kGemmRead = kGemmDepth * 32;

struct GemmKernels {
  const char* name;
  // Computes c's rows [row_begin, row_end) and columns [column_begin,
  // column_end), on this thread. `space` is aligned to a cache line, and
  // kGemmRead longer with a source. Null in the plain table, for which the BLAS
  // is used.
  void (*run)(const GemmProblem& problem, int64_t row_begin, int64_t row_end,
              int64_t column_begin, int64_t column_end, float* space);
};

SIMD_TABLES(GemmKernels, kGemm);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_GEMM_GEMM_H_
