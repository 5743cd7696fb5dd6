// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/sum_tree.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace capstan {
namespace {

constexpr int64_t kNumel = 100;

at::Tensor Gradient(int index) {
  const at::Tensor x = at::arange(kNumel, at::kFloat).add(0.37 * index);
  return x.mul(12.9898).sin().mul(x.mul(0.771).cos().mul(5).exp());
}

// The tree's definition, over micro-steps [begin, end).
at::Tensor Tree(int begin, int end) {
  if (end - begin == 1) return Gradient(begin);
  int left = 1;
  while (2 * left < end - begin) left *= 2;
  return Tree(begin, begin + left).add(Tree(begin + left, end));
}

TEST(SumTreeTest, AddsAlongTheTree) {
  const at::Tensor sums = at::full({kNumel}, 99, at::kFloat);
  SumTree tree(sums);
  // Steps one after another, of any length, in the same memory.
  for (const int count : {8, 1, 2, 3, 4, 7, 13, 16}) {
    for (int i = 0; i < count; ++i) {
      const at::Tensor leaf = tree.Leaf(i, count);
      // Bucket by bucket, as gradients come.
      for (const auto& [begin, end] : {std::make_pair(60, 100), {0, 60}}) {
        leaf.narrow(0, begin, end - begin)
            .copy_(Gradient(i).narrow(0, begin, end - begin));
        tree.Add(i, count, begin, end);
      }
    }
    EXPECT_TRUE(sums.equal(Tree(0, count))) << count;
  }
}

TEST(SumTreeTest, OfGradientsInTheirOwnMemory) {
  OwnedSumTree tree;
  for (const int count : {8, 1, 2, 3, 4, 7, 13, 16}) {
    at::Tensor sum;
    for (int i = 0; i < count; ++i) {
      ASSERT_FALSE(sum.defined());
      sum = tree.Add(i, count, Gradient(i));
    }
    ASSERT_TRUE(sum.defined());
    EXPECT_TRUE(sum.equal(Tree(0, count))) << count;
  }
}

TEST(SumTreeTest, BeginsAnewAfterAStepThatFailed) {
  OwnedSumTree tree;
  (void)tree.Add(0, 4, Gradient(5));
  (void)tree.Add(1, 4, Gradient(6));
  (void)tree.Add(0, 2, Gradient(0));
  EXPECT_TRUE(tree.Add(1, 2, Gradient(1)).equal(Tree(0, 2)));
}

// A power of two of ranks and micro-steps: the same bits, whether ranks or
// micro-steps are added first.
TEST(SumTreeTest, RanksContinueIt) {
  const auto steps = [](int begin, int stride, int count) {
    OwnedSumTree tree;
    at::Tensor sum;
    for (int i = 0; i < count; ++i) {
      sum = tree.Add(i, count, Gradient(begin + i * stride));
    }
    return sum;
  };
  for (const int ranks : {2, 4, 8}) {
    const int count = 16 / ranks;
    OwnedSumTree over_ranks;
    at::Tensor by_rank;
    for (int r = 0; r < ranks; ++r) {
      by_rank = over_ranks.Add(r, ranks, steps(r * count, 1, count));
    }
    EXPECT_TRUE(by_rank.equal(Tree(0, 16))) << ranks;
    OwnedSumTree over_steps;
    at::Tensor by_step;
    for (int i = 0; i < count; ++i) {
      by_step = over_steps.Add(i, count, steps(i * ranks, 1, ranks));
    }
    EXPECT_TRUE(by_step.equal(Tree(0, 16))) << ranks;
  }
}

TEST(SumTreeTest, WaitingSums) {
  EXPECT_EQ(WaitingSums(1), 0);
  EXPECT_EQ(WaitingSums(2), 1);
  EXPECT_EQ(WaitingSums(3), 2);
  EXPECT_EQ(WaitingSums(4), 2);
  EXPECT_EQ(WaitingSums(16), 4);
}

}  // namespace
}  // namespace capstan
