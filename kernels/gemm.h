// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_GEMM_H_
#define CAPSTAN_KERNELS_GEMM_H_

#include <cstdint>

namespace capstan {
namespace kernels {

// A row-major matrix in memory: row i begins at data + i * stride.
struct ConstMatrix {
  const float* data;
  int64_t stride;
};
struct Matrix {
  float* data;
  int64_t stride;
};

// Which factor is given as its transpose.
enum class Transpose { kNone, kLeft, kRight };

// c [m, n] = alpha * a b + beta * c with k the inner size, where a is [m, k]
// (kLeft: given as [k, m]) and b is [k, n] (kRight: given as [n, k]). A beta of
// 0 overwrites whatever c holds. Uses the BLAS in LibTorch, on one thread
// inside at::parallel_for. Sizes and strides are below 2^31.
void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k, float alpha,
          ConstMatrix a, ConstMatrix b, float beta, Matrix c);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_GEMM_H_
