// SPDX-License-Identifier: Apache-2.0
//
// The kernels of cuda_kernels.h on tensors, without autograd. An operator uses
//   if (const auto* cuda = cuda::For(x)) return cuda::RmsNorm(*cuda, ...);
// and falls back to ATen's operators. Work is enqueued on LibTorch's current
// stream of the tensors' device, which must be the thread's current device;
// nothing blocks. Throws c10::Error for a wrong shape, dtype or device. Inputs
// are made contiguous if needed; what is written in place must be.
#ifndef CAPSTAN_KERNELS_CUDA_DISPATCH_H_
#define CAPSTAN_KERNELS_CUDA_DISPATCH_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "kernels/cuda/cuda_kernels.h"

namespace capstan::kernels::cuda {

// The table if it supports x (a GPU of compute capability 8.0 or more, float32,
// bfloat16 or float16), else null.
const CudaKernels* For(const at::Tensor& x);

// Why a library's table can't be called, to follow the library's name in a
// message; "" if it can. Null: the library has none.
std::string Refusal(const CudaKernels* kernels);

// kNone for an undefined tensor and for unsupported dtypes.
DType TypeOf(const at::Tensor& t);

struct NormResult {
  at::Tensor y;     // [rows, n], of x's dtype
  at::Tensor rstd;  // [rows] float32
};
// y = rms_norm(x) * weight. x: [rows, n], weight: [n], of one dtype. plus_one:
// see kernels/layers/rms_norm.h. Or x: [groups, heads, n], of which groups may
// be apart, and rows = groups * heads.
NormResult RmsNorm(const CudaKernels& cuda, const at::Tensor& x,
                   const at::Tensor& weight, double eps, bool plus_one = false);

// The same for x [rows, n] + add, which `sum` becomes, rounded, and `again`,
// too, if defined; like x, but not x.
NormResult AddRmsNorm(const CudaKernels& cuda, const at::Tensor& x,
                      const at::Tensor& add, const at::Tensor& weight,
                      double eps, at::Tensor& sum, bool plus_one = false,
                      const at::Tensor& again = {});

// Recomputes y from x and rstd.
at::Tensor RmsNormAgain(const CudaKernels& cuda, const at::Tensor& x,
                        const at::Tensor& weight, const at::Tensor& rstd,
                        bool plus_one = false);

// Where its backward writes.
struct NormGradients {
  // The gradient to x plus `residual`; undefined: a new tensor. As x, it may
  // be [groups, heads, n]; then there is no residual.
  at::Tensor dx;
  // [n], float32 or of x's dtype, contiguous; undefined: not computed.
  at::Tensor dweight;
  bool add = false;  // to dweight, rather than overwrite it
};
// Returns dx. dy: rows of n. residual: [rows, n] or undefined.
at::Tensor RmsNormBackward(const CudaKernels& cuda, const at::Tensor& dy,
                           const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& rstd, const at::Tensor& residual,
                           NormGradients into, bool plus_one = false);

// y = x [rows, heads * head_dim], rotated; y may be x. Rows are dense, but may
// be apart. Row r is at position r % table.size(0). sign: 1 forward, -1
// backward.
void Rope(const CudaKernels& cuda, const at::Tensor& table, double sign,
          const at::Tensor& x, at::Tensor& y);

// act(gate) * up: silu, or GELU by tanh. Of matrices whose dense rows are
// apart, alike in both, too.
at::Tensor SwiGlu(const CudaKernels& cuda, const at::Tensor& gate,
                  const at::Tensor& up, bool gelu = false);

// d_activation becomes act(gate) * up, which backward needs too. The outputs
// d_gate and d_up may be gate and up. All are of one shape and contiguous, or
// matrices: then rows of gate and up may be apart, alike in both, and those of
// d_gate and d_up.
void SwiGluBackward(const CudaKernels& cuda, const at::Tensor& gate,
                    const at::Tensor& up, at::Tensor& d_activation,
                    at::Tensor& d_gate, at::Tensor& d_up, bool gelu = false);

// x [rows, n] with numbers dropped as DropoutArgs says, and the others divided
// by 1 - rate. samples: [samples] int64, rows / samples rows each, numbered
// from `first`.
at::Tensor Dropout(const CudaKernels& cuda, const at::Tensor& x,
                   const at::Tensor& samples, uint64_t key, double rate,
                   int64_t first = 0);

// See kernels/loss/embedding_noise.h; samples and size are on x's device.
void AddNoise(const CudaKernels& cuda, const at::Tensor& samples,
              const at::Tensor& size, uint64_t key, int64_t first,
              at::Tensor& x);

// See kernels/loss/tokens.h. logits must be contiguous; weights may be
// undefined.
at::Tensor CrossEntropySum(const CudaKernels& cuda, at::Tensor& logits,
                           const at::Tensor& targets, bool gradient,
                           double factor, const at::Tensor& weights,
                           double smoothing = 0.0);

// d_weight [vocab, hidden] (contiguous, float32 or of dy's dtype) += the rows
// of dy [rows, hidden] at tokens [rows] int64. Deterministic.
void EmbeddingBackward(const CudaKernels& cuda, const at::Tensor& dy,
                       const at::Tensor& tokens, at::Tensor& d_weight);

// Writes a packed matrix's values to `out`, contiguous, of any shape; `args`
// has the rest, on its device.
void DequantizeNf4(const CudaKernels& cuda, DequantizeNf4Args args,
                   at::Tensor& out);

// x [rows, columns] bfloat16 in 8 bits, as CastFp8Args says.
struct CastTo8Bits {
  at::Tensor values;  // [rows, columns], up to a multiple of 16 with zeros
  at::Tensor scale;   // [rows, 1] or [1, 1] float32
  at::Tensor turned;  // x^T's values of the same scale; or undefined
};
// type: Float8_e4m3fn or Float8_e5m2. The length of x's rows or columns,
// whichever are dense, is a multiple of 16. both: x^T, too, for columns that
// are dense, and one scale.
CastTo8Bits CastFp8(const CudaKernels& cuda, const at::Tensor& x,
                    at::ScalarType type, bool by_row, bool both, float most,
                    float least_amax);

// Rows' choices of experts, grouped by expert (GroupChoicesArgs).
struct ChoiceGroups {
  at::Tensor row;     // [places] int64: the row of each place
  at::Tensor order;   // [rows * top_k] int64: the place of each choice
  at::Tensor share;   // [places] float32
  at::Tensor ends;    // [experts] int32, by group
  at::Tensor chosen;  // [experts] float32, by expert
};
// expert, share: [rows, top_k] int64 and float32.
ChoiceGroups GroupChoices(const CudaKernels& cuda, const at::Tensor& expert,
                          const at::Tensor& share, int64_t experts,
                          bool reversed, bool padded);

// Sums of x's rows as SumChosenArgs says: [rows, n]. order: [rows * top_k];
// share and add may be undefined.
at::Tensor SumChosen(const CudaKernels& cuda, const at::Tensor& x,
                     const at::Tensor& order, int64_t top_k,
                     const at::Tensor& share, const at::Tensor& add);

// The sum of squares of a contiguous tensor of any shape: a float64 scalar on
// its device. Deterministic.
at::Tensor SquaredSum(const CudaKernels& cuda, const at::Tensor& x);

}  // namespace capstan::kernels::cuda

#endif  // CAPSTAN_KERNELS_CUDA_DISPATCH_H_
