// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_GRID_SUMS_H_
#define CAPSTAN_STRATEGIES_COMMON_GRID_SUMS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace capstan {

// Sums of gradients whose bits don't depend on the order of their addends, for
// deterministic runs: in float64, of what each micro-batch gives, rounded to
// CurrentGradientGrid (kernels/context/gradient_grid.h). Process groups add
// them over the ranks as they are, and the result is rounded once. NaN and
// infinities stay; sums beyond the grid's range are rounded as others are.

// Writes `gradients` [n] (float32 or 16 bits), rounded to the grid, to `sums`
// [n] float64, or adds them. Both are contiguous, on one device.
void PutOnGrid(const at::Tensor& gradients, bool add, const at::Tensor& sums);

// The same for buckets, which exist only while they are summed.
class GridBuckets {
 public:
  // Adds `gradients` to the sums of bucket `bucket`, which begin with them if
  // `first`. Returns the sums, which the caller then owns, if `last`; else an
  // undefined tensor. `gradients` may be freed.
  at::Tensor Add(int bucket, const at::Tensor& gradients, bool first,
                 bool last);

 private:
  std::vector<at::Tensor> sums_;
};

// The bytes of an element of such sums.
constexpr int64_t kGridSumBytes = 8;

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_GRID_SUMS_H_
