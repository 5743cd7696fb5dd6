// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_SUM_TREE_H_
#define CAPSTAN_STRATEGIES_COMMON_SUM_TREE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace capstan {

// The sum of a step's gradients along a binary tree over its micro-steps: of n,
// the sum of the first m, where m is the largest power of two below n, plus the
// sum of the others. It is made as a binary counter counts: the sums of 1, 2,
// 4, .. consecutive micro-steps wait until their right neighbours are there.
//
// A process group adds ranks along the same tree, so that gradients have the
// same bits for every way to divide a power of two of micro-batches into a
// power of two of ranks and micro-steps.

// The waiting sums of a step of `count` micro-steps, at most.
int WaitingSums(int count);

// In buffers of its own, all of whose elements wait together. One thread at a
// time.
class SumTree {
 public:
  // sums: [n], where the sum of all is to be; kept.
  explicit SumTree(at::Tensor sums) : sums_(std::move(sums)) {}

  // Where micro-step `index` of `count` writes its gradient [n]; allocates it
  // if needed (as kGradients). No element of it may be written before the last
  // micro-step's Add of that element.
  const at::Tensor& Leaf(int index, int count);

  // Elements [begin, end) of that gradient are there. Once for each element and
  // micro-step.
  void Add(int index, int count, int64_t begin, int64_t end);

 private:
  const at::Tensor& Level(int level);

  const at::Tensor sums_;
  std::vector<at::Tensor> levels_;  // of 2^l micro-steps
};

// Of gradients in memory of their own, which is kept or freed: no copies.
class OwnedSumTree {
 public:
  // Adds micro-step `index` of `count`, whose memory this takes over. Returns
  // the sum of all after the last one, else an undefined tensor.
  at::Tensor Add(int index, int count, at::Tensor gradient);

 private:
  std::vector<at::Tensor> levels_;
};

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_SUM_TREE_H_
