// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/gradient_grid.h"

#include <atomic>

namespace capstan {
namespace {

std::atomic<int> grid{kGradientGridBits};

}  // namespace

void SetGradientGrid(int bits) { grid = bits; }

int CurrentGradientGrid() { return grid; }

}  // namespace capstan
