// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/grid_sums.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <utility>

#include "kernels/context/gradient_grid.h"
#include "plugins/sdk/memory.h"

namespace capstan {
namespace {

// Elements that are worth a thread's turn.
constexpr int64_t kGrain = 1 << 15;

// The sum with `grid`, 1.5 * 2^(52 - bits), has no bits below the grid's, so
// that the difference is the nearest multiple; compilers leave it as it is, but
// with -ffast-math. Numbers too large for that have no bits below the grid's.
template <typename T>
void PutOnGrid(const T* gradients, bool add, double grid, int64_t n,
               double* sums) {
  if (add) {
    for (int64_t i = 0; i < n; ++i) {
      const auto x = static_cast<double>(static_cast<float>(gradients[i]));
      sums[i] += (x + grid) - grid;
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const auto x = static_cast<double>(static_cast<float>(gradients[i]));
    sums[i] = (x + grid) - grid;
  }
}

template <typename T>
void PutAllOnGrid(const at::Tensor& gradients, bool add, double grid,
                  const at::Tensor& sums) {
  const T* const from = gradients.const_data_ptr<T>();
  double* const to = sums.mutable_data_ptr<double>();
  at::parallel_for(0, sums.numel(), kGrain, [&](int64_t begin, int64_t end) {
    PutOnGrid(from + begin, add, grid, end - begin, to + begin);
  });
}

}  // namespace

void PutOnGrid(const at::Tensor& gradients, bool add, const at::Tensor& sums) {
  const double grid = std::ldexp(1.5, 52 - CurrentGradientGrid());
  const at::ScalarType type = gradients.scalar_type();
  if (!gradients.is_cpu()) {
    const at::Tensor on_grid = gradients.to(at::kDouble).add_(grid).sub_(grid);
    add ? sums.add_(on_grid) : sums.copy_(on_grid);
    return;
  }
  if (type == at::kFloat)
    return PutAllOnGrid<float>(gradients, add, grid, sums);
  if (type == at::kBFloat16) {
    return PutAllOnGrid<at::BFloat16>(gradients, add, grid, sums);
  }
  PutAllOnGrid<at::Half>(gradients, add, grid, sums);
}

at::Tensor GridBuckets::Add(int bucket, const at::Tensor& gradients, bool first,
                            bool last) {
  if (static_cast<size_t>(bucket) >= sums_.size()) sums_.resize(bucket + 1);
  at::Tensor& sums = sums_[bucket];
  if (first) {
    const MemoryScope scope(MemoryCategory::kBuckets);
    sums =
        at::empty({gradients.numel()}, gradients.options().dtype(at::kDouble));
  }
  PutOnGrid(gradients, /*add=*/!first, sums);
  return last ? std::exchange(sums, at::Tensor()) : at::Tensor();
}

}  // namespace capstan
