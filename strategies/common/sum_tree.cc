// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/sum_tree.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>

#include <utility>

#include "plugins/sdk/memory.h"

namespace capstan {
namespace {

// The sums that wait after `index` micro-steps: one per bit.
bool Waits(int level, int index) { return (index >> level & 1) != 0; }

}  // namespace

int WaitingSums(int count) {
  int levels = 0;
  for (int last = count - 1; last > 0; last >>= 1) ++levels;
  return levels;
}

const at::Tensor& SumTree::Level(int level) {
  if (static_cast<int>(levels_.size()) <= level) levels_.resize(level + 1);
  if (!levels_[level].defined()) {
    const MemoryScope scope(MemoryCategory::kGradients);
    levels_[level] = at::empty_like(sums_);
  }
  return levels_[level];
}

const at::Tensor& SumTree::Leaf(int index, int count) {
  // What is first of a pair waits where it has been written.
  return index + 1 < count && !Waits(0, index) ? Level(0) : sums_;
}

void SumTree::Add(int index, int count, int64_t begin, int64_t end) {
  const at::NoGradGuard no_grad;
  const auto part = [&](const at::Tensor& flat) {
    return flat.narrow(0, begin, end - begin);
  };
  at::Tensor sum = part(sums_);
  if (index + 1 == count) {
    for (int level = 0; level < WaitingSums(count); ++level) {
      if (Waits(level, index)) at::add_out(sum, part(Level(level)), sum);
    }
    return;
  }
  for (int level = 0; Waits(level, index); ++level) {
    at::Tensor to = Waits(level + 1, index) ? sum : part(Level(level + 1));
    at::add_out(to, part(Level(level)), sum);
  }
}

at::Tensor OwnedSumTree::Add(int index, int count, at::Tensor gradient) {
  const at::NoGradGuard no_grad;
  if (levels_.empty() || index == 0) {
    levels_.assign(WaitingSums(count), at::Tensor());
  }
  const bool last = index + 1 == count;
  for (int level = 0; level < static_cast<int>(levels_.size()); ++level) {
    if (!Waits(level, index)) {
      if (last) continue;
      levels_[level] = std::move(gradient);
      return at::Tensor();
    }
    // Null after a micro-step that threw.
    if (levels_[level].defined()) gradient.add_(levels_[level]);
    levels_[level].reset();
  }
  return gradient;
}

}  // namespace capstan
