// SPDX-License-Identifier: Apache-2.0
//
// The products of linear layers in 8 bits (Micikevicius et al., "FP8 Formats
// for Deep Learning", 2022): activations and weights in E4M3 (at most 448),
// gradients of results in E5M2 (at most 57344). Each factor is multiplied by
// max / amax, amax being its greatest magnitude (of all of it, or of the row or
// column that one sum runs over) but at least 1e-12, and rounded to nearest
// even, which can't overflow; sums are float32, divided by both scales, and
// rounded to bfloat16 once (as torchao's float8_linear and Transformer Engine's
// current scaling). On GPUs of compute capability 8.9 and above by
// at::_scaled_mm; elsewhere the same factors are multiplied by Gemm, so that
// results differ by the order of sums alone. Without autograd.
#ifndef CAPSTAN_KERNELS_LAYERS_FP8_LINEAR_H_
#define CAPSTAN_KERNELS_LAYERS_FP8_LINEAR_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "kernels/context/fp8.h"
#include "kernels/layers/weight.h"

namespace capstan::kernels {

// Whether a matrix has multiples of 16 rows and columns, as tensor cores want.
bool FitsFp8(int64_t out, int64_t in);
// Whether products with it are in 8 bits: if it fits and says so.
bool UsesFp8(const Weight& weight);

// A factor of products that sum over columns.
struct Fp8Factor {
  // [rows, columns] in 8 bits on GPUs, with columns of zeros up to a multiple
  // of 16; elsewhere in bfloat16, which has all of these numbers.
  at::Tensor values;
  at::Tensor scale;  // [rows, 1] or [1, 1] float32: restores them, by product
};
// Of x [rows, columns] bfloat16, with any strides, in E4M3 or E5M2.
Fp8Factor CastToFp8(const at::Tensor& x, c10::ScalarType type,
                    Fp8Scaling scaling, Fp8Underflow::Kind kind);

// As long as it exists, the matrix at `data` stays as it is, and what is cast
// of it by this thread is cast once: for layers of one input. At most one a
// thread exists.
class Fp8Unchanged {
 public:
  explicit Fp8Unchanged(const void* data);
  ~Fp8Unchanged();
  Fp8Unchanged(const Fp8Unchanged&) = delete;
  Fp8Unchanged& operator=(const Fp8Unchanged&) = delete;

 private:
  friend Fp8Factor CastToFp8(const at::Tensor&, c10::ScalarType, Fp8Scaling,
                             Fp8Underflow::Kind);
  // Whether `x` is what `factor` was made of.
  bool Has(const at::Tensor& x, c10::ScalarType type, Fp8Scaling scaling) const;

  const void* const data_;
  // What was cast last, without its memory, and how.
  std::vector<int64_t> sizes_, strides_;
  c10::ScalarType type_ = c10::ScalarType::Undefined;
  Fp8Scaling scaling_ = Fp8Scaling::kOff;
  Fp8Factor factor_;
};

// As long as it exists, a GPU casts gradients dy and dy^T of one scale
// together, reading dy once: the one that isn't asked for first is kept until
// it is, or until another dy is cast. At most one a thread exists.
class Fp8BothWays {
 public:
  // wanted: whether both products of a dy are computed; else it does nothing.
  explicit Fp8BothWays(bool wanted);
  ~Fp8BothWays();
  Fp8BothWays(const Fp8BothWays&) = delete;
  Fp8BothWays& operator=(const Fp8BothWays&) = delete;

 private:
  friend Fp8Factor CastToFp8(const at::Tensor&, c10::ScalarType, Fp8Scaling,
                             Fp8Underflow::Kind);
  // Whether `kept_` is of x.
  bool Has(const at::Tensor& x) const;

  at::Tensor of_;   // what was cast
  Fp8Factor kept_;  // of its transpose
};

// a b^T [a's rows, b's rows] bfloat16. fast: sums may have fewer bits than
// float32 (Hopper's own accumulation).
at::Tensor Fp8Product(const Fp8Factor& a, const Fp8Factor& b, bool fast);

// The three products, for W [out, in] of UsesFp8, x [rows, in] and dy [rows,
// out] bfloat16. beta: 0 overwrites the result, 1 adds to it, after rounding.
// A packed W of kFp8 is a factor of the first as it is stored; otherwise packed
// ones are cast from what they stand for, in bfloat16.
// y [rows, out] = x W^T
void Fp8LinearInto(const at::Tensor& y, const at::Tensor& x,
                   const Weight& weight, double beta);
// dx [rows, in] = dy W
void Fp8LinearBackwardInto(const at::Tensor& dx, const at::Tensor& dy,
                           const Weight& weight, double beta);
// gradient [out, in], bfloat16 or float32, = dy^T x
void Fp8WeightGradientInto(const at::Tensor& gradient, const at::Tensor& dy,
                           const at::Tensor& x, Fp8Scaling scaling,
                           double beta);

// Bytes that the first of them allocates, and the most of the other two.
struct Fp8LinearMemory {
  int64_t forward = 0;
  int64_t backward = 0;
};
Fp8LinearMemory PlanFp8Linear(int64_t rows, int64_t in, int64_t out, bool gpu);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_FP8_LINEAR_H_
