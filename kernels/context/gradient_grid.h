// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CONTEXT_GRADIENT_GRID_H_
#define CAPSTAN_KERNELS_CONTEXT_GRADIENT_GRID_H_

namespace capstan {

// Deterministic runs add gradients in float64, each rounded to a multiple of
// 2^-bits before: such sums are exact, in whatever order they are made, up to
// 2^(53 - bits). Of the gradients of a step's mean loss this grid has 50 bits:
// it is no coarser than float32 is at AdamW's epsilon, 1e-8, and reaches to 8.
constexpr int kGradientGridBits = 50;

// Of the gradients that the present step's backward makes: more or fewer bits
// if the loss is scaled. Set before each step. Thread-safe.
void SetGradientGrid(int bits);
int CurrentGradientGrid();

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_GRADIENT_GRID_H_
