// SPDX-License-Identifier: Apache-2.0
//
// Products of float32 matrices in memory.
//
// On processors without kernels in LibTorch's BLAS (MKL), above all AMD's, ours
// are 8 to 20 % faster at the sizes of a training step; on Intel's, MKL is
// used. CAPSTAN_GEMM=own or =blas in the environment overrides this for
// measurements.
#ifndef CAPSTAN_KERNELS_GEMM_GEMM_H_
#define CAPSTAN_KERNELS_GEMM_GEMM_H_

#include <cstdint>

namespace capstan::kernels {

// A row-major matrix in memory: row i begins at data + i * stride.
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

// The implementation in use: "avx512", "avx2" or "blas".
const char* GemmName();

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_GEMM_GEMM_H_
