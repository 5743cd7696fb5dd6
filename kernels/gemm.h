// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_GEMM_H_
#define CAPSTAN_KERNELS_GEMM_H_

#include <ATen/native/CPUBlas.h>

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

enum class Transpose { kNone, kLeft, kRight };

// c [m, n] = alpha * a b + beta * c with k the inner size, where a is [m, k]
// (kLeft: given as its transpose [k, m]) and b [k, n] (kRight: given as its
// transpose [n, k]). With the BLAS that LibTorch links; a beta of 0 overwrites
// whatever c holds.
inline void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k,
                 float alpha, ConstMatrix a, ConstMatrix b, float beta,
                 Matrix c) {
  using at::native::TransposeType;
  const auto type = [](bool yes) {
    return yes ? TransposeType::Transpose : TransposeType::NoTranspose;
  };
  // The BLAS sees row-major matrices as transposed ones: c^T = b^T a^T.
  at::native::cpublas::gemm(type(transpose == Transpose::kRight),
                            type(transpose == Transpose::kLeft), n, m, k, alpha,
                            b.data, b.stride, a.data, a.stride, beta, c.data,
                            c.stride);
}

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_GEMM_H_
