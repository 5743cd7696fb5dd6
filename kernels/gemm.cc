// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm.h"

// Of the BLAS that libtorch_cpu contains, which is what at::mm calls: without
// the microsecond or two that making tensors and dispatching would take for
// each block of an attention head. Fortran's interface is the one it exports.
extern "C" void sgemm_(const char* transpose_a, const char* transpose_b,
                       const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta,
                       float* c, const int* ldc);

namespace capstan {
namespace kernels {

void Gemm(Transpose transpose, int64_t m, int64_t n, int64_t k, float alpha,
          ConstMatrix a, ConstMatrix b, float beta, Matrix c) {
  const char left = transpose == Transpose::kLeft ? 'T' : 'N';
  const char right = transpose == Transpose::kRight ? 'T' : 'N';
  const int im = static_cast<int>(m), in = static_cast<int>(n);
  const int ik = static_cast<int>(k), a_stride = static_cast<int>(a.stride);
  const int b_stride = static_cast<int>(b.stride);
  const int c_stride = static_cast<int>(c.stride);
  // Fortran sees a row-major matrix as its transpose: c^T = b^T a^T.
  sgemm_(&right, &left, &in, &im, &ik, &alpha, b.data, &b_stride, a.data,
         &a_stride, &beta, c.data, &c_stride);
}

}  // namespace kernels
}  // namespace capstan
