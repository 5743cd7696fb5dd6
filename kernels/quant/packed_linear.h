// SPDX-License-Identifier: Apache-2.0
//
// Products with matrices that are packed (nf4.h, fp8.h), which are never
// whole in memory as floats: in float32 on the CPU they are dequantised where
// Gemm makes its panels; for other dtypes and devices a matrix at a time.
// Without autograd; a packed matrix is frozen.
#ifndef CAPSTAN_KERNELS_QUANT_PACKED_LINEAR_H_
#define CAPSTAN_KERNELS_QUANT_PACKED_LINEAR_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/layers/weight.h"
#include "kernels/quant/fp8.h"
#include "kernels/quant/nf4.h"

namespace capstan::kernels {

// Where things are in a packed weight's bytes, of NF4 and of kFp8.
Nf4Layout LayoutOf(const Weight& weight);
Fp8Layout Fp8LayoutOf(const Weight& weight);
// Of kFp8, E4M3 [out, in] in the weight's memory, and a copy of the scales,
// [out, 1] float32.
at::Tensor Fp8Values(const Weight& weight);
at::Tensor Fp8Scales(const Weight& weight);

// y [rows, out] = x W^T + beta * y, for x [rows, in] and a packed W [out, in]
// on one device; beta is 0, which overwrites y, or 1.
void PackedLinearInto(const at::Tensor& y, const at::Tensor& x,
                      const Weight& weight, double beta = 0.0);

// dx [rows, in] = dy W + beta * dx, for dy [rows, out].
void PackedLinearBackwardInto(const at::Tensor& dx, const at::Tensor& dy,
                              const Weight& weight, double beta = 0.0);

// W [out, in], rounded to `dtype` (float32, bfloat16 or float16).
at::Tensor Dequantize(const Weight& weight, c10::ScalarType dtype);

// The arguments of the CUDA kernel for bytes on a GPU, from value `first` on,
// but for its output.
cuda::DequantizeNf4Args CudaArguments(const at::Tensor& packed,
                                      const Nf4Layout& layout,
                                      int64_t first = 0);

// Bytes that a product of the two with W [out, in] allocates on the CPU.
int64_t PlanPackedLinear(int64_t out, int64_t in, c10::ScalarType dtype);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_QUANT_PACKED_LINEAR_H_
