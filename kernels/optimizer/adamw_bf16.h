// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_OPTIMIZER_ADAMW_BF16_H_
#define CAPSTAN_KERNELS_OPTIMIZER_ADAMW_BF16_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/optimizer/adamw.h"

namespace capstan::kernels {

// AdamWStep with exp_avg and exp_avg_sq in bfloat16. Each is updated in
// float32, used for the parameter, and then rounded up or down at random, so
// that its mean is exact: rounded to nearest, a second moment would stand
// still, since a step changes it by less than half of bfloat16's last place.
// The random bits are a function of `key` and `begin` plus the element's index:
// the same however a parameter is cut. `begin` is the index of the buffers'
// first element in its parameter; `key` is for this parameter and step.
// Bits depend neither on the number of threads nor on the device; a GPU without
// our kernels leaves the update to the host.
void AdamWBf16Step(const AdamWOptions& options, const AdamWBuffers& buffers,
                   uint64_t key, int64_t begin);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_ADAMW_BF16_H_
