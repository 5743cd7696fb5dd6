// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/seen_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/layers/gpu_path.h"
#include "kernels/to_device.h"

namespace capstan::kernels {
namespace {

at::Tensor Select(const at::Tensor& t, const at::Tensor& rows) {
  return t.defined() ? t.index_select(0, rows) : t;
}

// The rows with a target, then others, if they are to be more. None: all rows.
std::optional<std::vector<int64_t>> Choose(const at::Tensor& contiguous,
                                           bool gpu) {
  const int64_t* target = contiguous.const_data_ptr<int64_t>();
  const int64_t rows = contiguous.numel();
  std::vector<int64_t> seen;
  for (int64_t r = 0; r < rows; ++r) {
    if (target[r] >= 0) seen.push_back(r);
  }
  const auto with_target = static_cast<int64_t>(seen.size());
  const int64_t count = gpu ? SeenRowsOnGpu(with_target) : with_target;
  if (with_target == rows || 8 * count > 7 * rows) return std::nullopt;
  for (int64_t r = 0; static_cast<int64_t>(seen.size()) < count; ++r) {
    if (target[r] < 0) seen.push_back(r);
  }
  return seen;
}

// [2, n] int64 on the CPU: the rows, and their targets.
at::Tensor RowsAndTargets(const std::vector<int64_t>& seen,
                          const at::Tensor& contiguous) {
  const auto count = static_cast<int64_t>(seen.size());
  const at::Tensor both = at::empty({2, count}, contiguous.options());
  const int64_t* target = contiguous.const_data_ptr<int64_t>();
  int64_t* const out = both.mutable_data_ptr<int64_t>();
  std::copy(seen.begin(), seen.end(), out);
  for (int64_t i = 0; i < count; ++i) out[count + i] = target[seen[i]];
  return both;
}

}  // namespace

int64_t SeenRowsOnGpu(int64_t count) {
  int64_t multiple = 64;
  while (16 * multiple < count) multiple *= 2;
  return std::max<int64_t>(1, (count + multiple - 1) / multiple) * multiple;
}

SeenRows RowsToSee(const at::Tensor& hidden, const at::Tensor& targets,
                   const at::Tensor& weights) {
  const auto moved = [&](const at::Tensor& t) {
    return t.defined() ? ToDevice(t, hidden.device()) : t;
  };
  std::optional<std::vector<int64_t>> seen;
  const at::Tensor contiguous = targets.contiguous();
  if (targets.is_cpu()) seen = Choose(contiguous, OnGpuPath(hidden));
  if (!seen.has_value()) {
    return {at::Tensor(), moved(targets), moved(weights)};
  }
  const at::Tensor host = RowsAndTargets(*seen, contiguous);
  const at::Tensor both = moved(host);
  SeenRows made = {both.select(0, 0), both.select(0, 1), weights};
  if (!weights.defined()) return made;
  made.weights = weights.is_cpu() ? moved(Select(weights, host.select(0, 0)))
                                  : Select(weights, made.rows);
  return made;
}

}  // namespace capstan::kernels
