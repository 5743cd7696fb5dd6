// SPDX-License-Identifier: Apache-2.0
//
// The matrix products of gemm.cc, one per instruction set.
#ifndef CAPSTAN_KERNELS_GEMM_GEMM_KERNELS_H_
#define CAPSTAN_KERNELS_GEMM_GEMM_KERNELS_H_

#include <cstdint>

#include "base/simd/instruction_set.h"

namespace capstan::kernels {

// c [m, n] = alpha * a b + beta * c. a is [m, k], or passed as [k, m]; b is [k,
// n], or passed as [n, k]. Row-major; strides in floats.
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;  // all greater than 0
  float alpha = 1.0f;
  bool a_transposed = false;
  const float* a = nullptr;
  int64_t a_stride = 0;
  bool b_transposed = false;
  const float* b = nullptr;
  int64_t b_stride = 0;
  float beta = 0.0f;  // 0 overwrites c
  float* c = nullptr;
  int64_t c_stride = 0;
};

// The inner dimension is processed in blocks of at most this many terms. Only
// this decides how an element's sum is rounded, not the other elements computed
// with it nor the threads.
constexpr int64_t kGemmDepth = 384;
// Rows (or columns) of the smaller factor whose panels stay in the L2 cache:
// 512 * 384 floats are 768 KiB.
constexpr int64_t kGemmResident = 512;
// Floats of `space` for Run, besides those: one panel of the other factor, at
// most 32 wide; panels are written in whole vectors.
constexpr int64_t kGemmPanel = kGemmDepth * 32 + 32;
constexpr int64_t kGemmSpace =
    kGemmPanel + kGemmDepth * (kGemmResident + 32) + 32;

struct GemmKernels {
  const char* name;
  // Computes c's rows [row_begin, row_end) and columns [column_begin,
  // column_end), on this thread. `space` is aligned to a cache line. Null in
  // the plain table, for which the BLAS is used.
  void (*run)(const GemmProblem& problem, int64_t row_begin, int64_t row_end,
              int64_t column_begin, int64_t column_end, float* space);
};

SIMD_TABLES(GemmKernels, kGemm);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_GEMM_GEMM_KERNELS_H_
