// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_ROW_POSITIONS_H_
#define CAPSTAN_KERNELS_LAYERS_ROW_POSITIONS_H_

#include <cstdint>

namespace capstan::kernels {

// Which positions of its sample the rows are that a rank has of each, by which
// random numbers are drawn: all from `first` on, but for `jump` that are left
// out before the second half.
struct RowPositions {
  int64_t first = 0;
  int64_t jump = 0;

  // Of row `row` of all samples, which have `length` rows each.
  int64_t Of(int64_t row, int64_t length) const {
    const int64_t in_sample = row % length;
    return first + in_sample + (in_sample < length / 2 ? 0 : jump);
  }
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_ROW_POSITIONS_H_
