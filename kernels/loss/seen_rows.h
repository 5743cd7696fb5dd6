// SPDX-License-Identifier: Apache-2.0
//
// Which rows the output head computes: training on answers and masked diffusion
// have many without a target.
#ifndef CAPSTAN_KERNELS_LOSS_SEEN_ROWS_H_
#define CAPSTAN_KERNELS_LOSS_SEEN_ROWS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace capstan::kernels {

// The rows that the head processes, on the hidden rows' device and not tracked
// by autograd.
struct SeenRows {
  at::Tensor rows;     // [n] int64, of hidden; undefined: all
  at::Tensor targets;  // [n] int64
  at::Tensor weights;  // [n] float32; undefined: all 1
};

// Those with a target, or all if the others are less than an eighth. On GPUs
// all, too, if the targets are there, since the host would have to wait for
// them. Targets on the CPU and their weights, wherever they are, go to the
// hidden rows' device without a wait; of rows for a GPU there are a few more,
// without a target, so that their number has few values (SeenRowsOnGpu).
// targets: [rows] int64, negative: none; weights: [rows] float32 or undefined.
SeenRows RowsToSee(const at::Tensor& hidden, const at::Tensor& targets,
                   const at::Tensor& weights);

// `count` rounded up to a sixteenth of the next power of two, and at least 64:
// each number of rows takes other blocks of the allocator's and maybe other
// kernels of cuBLAS's.
int64_t SeenRowsOnGpu(int64_t count);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LOSS_SEEN_ROWS_H_
