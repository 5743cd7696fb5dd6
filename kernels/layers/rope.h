// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding (Su et al., "RoFormer", 2021) in Llama's layout:
// channels i and i + head_dim / 2 are rotated by position * theta^(-2i /
// head_dim).
#ifndef CAPSTAN_KERNELS_LAYERS_ROPE_H_
#define CAPSTAN_KERNELS_LAYERS_ROPE_H_

#include <ATen/core/Tensor.h>

namespace capstan::kernels {

// Cosines and sines of positions [0, positions): [positions, head_dim]
// float32 on CPU, a row's first half cosines, its second half sines.
at::Tensor RopeTable(int64_t positions, int64_t head_dim, double theta);

// Rotates x [rows, heads * head_dim] in place, without autograd. Row r is at
// the position of table row r % table.size(0): narrow the table to the
// positions of one sequence. Backward is the inverse rotation.
enum class RopeDirection { kForward, kBackward };
void ApplyRope(const at::Tensor& table, RopeDirection direction, at::Tensor& x);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_ROPE_H_
