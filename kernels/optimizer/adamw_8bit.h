// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_OPTIMIZER_ADAMW_8BIT_H_
#define CAPSTAN_KERNELS_OPTIMIZER_ADAMW_8BIT_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "kernels/optimizer/adamw.h"

namespace capstan::kernels {

// Elements that share a scale.
constexpr int64_t kBlockOf8Bit = 256;

// The values of the codes 0 .. 255, ascending: Dettmers' dynamic tree
// quantisation ("8-Bit Approximations for Parallelism in Deep Learning", 2016,
// section 2.2; "8-bit Optimizers via Block-wise Quantization", 2022, section
// 2.1), with the decades and midpoints of bitsandbytes' create_dynamic_map.
// Signed: 127 values on each side of 0, and 1; unsigned: 254 between 0 and 1.
const std::array<float, 256>& DynamicMap(bool is_signed);

// All 1-D, contiguous and on one device. Blocks start at the first element; the
// last one may be shorter.
struct AdamW8BitBuffers {
  at::Tensor gradient;           // [n] float32, bfloat16 or float16
  at::Tensor parameter;          // [n] float32
  at::Tensor exp_avg;            // [n] uint8, codes of the signed map
  at::Tensor exp_avg_absmax;     // [blocks] float32
  at::Tensor exp_avg_sq;         // [n] uint8, codes of the unsigned map
  at::Tensor exp_avg_sq_absmax;  // [blocks] float32
  at::Tensor working;            // as AdamWBuffers
  at::Tensor device_scale;       // as AdamWBuffers
};

// AdamWStep with both moments in 8 bits (Dettmers et al. 2022): a block's
// values are its largest magnitude times the map's values. A moment is read,
// updated in float32, used for the parameter, and only then rounded to the
// nearest code. A second moment greater than 0 is never rounded to 0, by which
// the next update might divide. Zeros, as before the first step, stand for 0.
// Bits depend neither on the number of threads, nor on the instruction set or
// device; a GPU without our kernels leaves the update to the host.
void AdamW8BitStep(const AdamWOptions& options,
                   const AdamW8BitBuffers& buffers);

// On a GPU, by our kernel.
void AdamW8BitByKernel(const cuda::CudaKernels& cuda,
                       const AdamWOptions& options,
                       const AdamW8BitBuffers& buffers);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_ADAMW_8BIT_H_
