// SPDX-License-Identifier: Apache-2.0
//
// Compares each kernel with ATen in float64 (and gradients with autograd
// there), on the emulator or on a GPU. The checks are googletest's; each
// returns what the kernels wrote, so that runs can be compared bit by bit.
#ifndef CAPSTAN_TESTING_CUDA_CHECKS_H_
#define CAPSTAN_TESTING_CUDA_CHECKS_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"

namespace capstan::kernels::cuda {

// The kernels, and the device of their tensors.
struct Subject {
  const CudaKernels& cuda;
  at::Device device;
};

using Outputs = std::vector<at::Tensor>;

Outputs CheckRmsNorm(const Subject& subject, at::ScalarType dtype, int64_t rows,
                     int64_t n);
// `aligned` false: x isn't aligned for vector loads.
Outputs CheckRope(const Subject& subject, at::ScalarType dtype,
                  int64_t positions, int64_t heads, int64_t head_dim,
                  bool aligned);
// `before`: columns before those of the heads.
Outputs CheckHeadNorms(const Subject& subject, at::ScalarType dtype,
                       int64_t rows, int64_t heads, int64_t n, int64_t before);
Outputs CheckSwiGlu(const Subject& subject, at::ScalarType dtype, int64_t rows,
                    int64_t n);
Outputs CheckDropout(const Subject& subject, at::ScalarType dtype,
                     int64_t samples, int64_t length, int64_t n);
Outputs CheckCrossEntropy(const Subject& subject, at::ScalarType dtype,
                          int64_t rows, int64_t vocab);
Outputs CheckEmbedding(const Subject& subject, at::ScalarType dtype,
                       at::ScalarType weight_dtype, int64_t rows,
                       int64_t hidden, int64_t vocab);
// Groups of `rows` rows' choices, and the sums of rows of n by them.
Outputs CheckExperts(const Subject& subject, at::ScalarType dtype, int64_t rows,
                     int64_t top_k, int64_t experts, int64_t n);
// Compares with the step on the CPU, bit by bit. working:
// ScalarType::Undefined: none. state: float32 or bfloat16. The kernel's buffers
// begin at the shift-th element of their memory.
Outputs CheckAdamW(const Subject& subject, at::ScalarType gradient,
                   at::ScalarType working, at::ScalarType state, int64_t n,
                   int64_t shift);
Outputs CheckAdamW8Bit(const Subject& subject, at::ScalarType gradient,
                       at::ScalarType working, int64_t n, int64_t shift);
// Compares with kernels/quant on the CPU, bit by bit.
Outputs CheckDequantizeNf4(const Subject& subject, at::ScalarType dtype,
                           int64_t n, bool double_quantised);
// The same of at::Float8_e4m3fn or at::Float8_e5m2, of x or its columns.
Outputs CheckCastFp8(const Subject& subject, at::ScalarType type, int64_t rows,
                     int64_t n, bool turned, bool by_row);
Outputs CheckSquaredSum(const Subject& subject, at::ScalarType dtype,
                        int64_t n);

// A check by name, for every dtype and sizes that cover every path of the
// kernels; large ones as well if `large`.
struct NamedCheck {
  std::string name;
  std::function<Outputs(const Subject& subject)> run;
};
std::vector<NamedCheck> AllChecks(bool large);

// Helpers of the checks.

// Normally distributed numbers of a fixed seed, rounded to dtype; on the CPU.
at::Tensor Normal(uint64_t seed, at::IntArrayRef sizes, at::ScalarType dtype);

// Expects |actual - expected| <= ulps units in the last place of `dtype`, of a
// number of the size of |expected| plus its root mean square, but at least
// least_size (for terms that cancel). expected: float64.
void ExpectClose(const at::Tensor& actual, const at::Tensor& expected,
                 at::ScalarType dtype, double ulps, const std::string& what,
                 double least_size = 0.0);

// Bitwise equal, except that any NaN equals any NaN.
bool SameBits(const at::Tensor& a, const at::Tensor& b);

}  // namespace capstan::kernels::cuda

#endif  // CAPSTAN_TESTING_CUDA_CHECKS_H_
