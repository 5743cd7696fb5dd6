// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/grid_sums.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/context/gradient_grid.h"

namespace capstan {
namespace {

constexpr int64_t kNumel = 1000;
constexpr double kStep = 1.0 / (int64_t{1} << kGradientGridBits);

// Of all magnitudes from 1e-9 to 0.3.
at::Tensor Gradient(int index) {
  const at::Tensor x = at::arange(kNumel, at::kFloat).add(0.37 * index);
  return x.mul(12.9898).sin().mul(x.mul(0.771).cos().mul(9).sub(10).exp());
}

// Of gradients `order`, the first `alone` of which are added on a rank of
// their own.
at::Tensor SumOf(const std::vector<int>& order, size_t alone) {
  at::Tensor ranks[2];
  for (size_t i = 0; i < order.size(); ++i) {
    at::Tensor& rank = ranks[i < alone ? 0 : 1];
    const bool first = !rank.defined();
    if (first) rank = at::empty({kNumel}, at::kDouble);
    PutOnGrid(Gradient(order[i]), /*add=*/!first, rank);
  }
  return alone == 0 ? ranks[1] : ranks[0].add(ranks[1]);
}

at::Tensor OnGrid(double x, at::ScalarType type = at::kFloat) {
  const at::Tensor sums = at::empty({1}, at::kDouble);
  PutOnGrid(at::full({1}, x, type), /*add=*/false, sums);
  return sums;
}

class GridSumsTest : public ::testing::Test {
 protected:
  ~GridSumsTest() override { SetGradientGrid(kGradientGridBits); }
};

TEST_F(GridSumsTest, AnyOrderAndDivisionGivesTheSameBits) {
  std::vector<int> order(13);
  std::iota(order.begin(), order.end(), 0);
  const at::Tensor want = SumOf(order, 0);
  at::Tensor plain = Gradient(0);
  for (size_t i = 1; i < order.size(); ++i) plain = plain + Gradient(order[i]);
  EXPECT_TRUE(want.to(at::kFloat).allclose(plain, 1e-5, 1e-7));
  // What float32 sums don't do.
  std::reverse(order.begin(), order.end());
  at::Tensor reverse = Gradient(order[0]);
  for (size_t i = 1; i < order.size(); ++i) {
    reverse = reverse + Gradient(order[i]);
  }
  EXPECT_FALSE(plain.equal(reverse));
  for (const size_t alone : {0, 1, 5, 12}) {
    for (int turn = 0; turn < 5; ++turn) {
      std::next_permutation(order.begin() + turn, order.end());
      std::rotate(order.begin(), order.begin() + 3, order.end());
      EXPECT_TRUE(SumOf(order, alone).equal(want)) << alone << " " << turn;
    }
  }
}

TEST_F(GridSumsTest, NumbersAreRoundedToTheNearestMultiple) {
  for (const double x : {0.3, 1.7, 100.25, 1e5 + 0.5}) {
    for (const double sign : {1.0, -1.0}) {
      EXPECT_EQ(OnGrid(sign * x * kStep).item<double>(),
                sign * std::nearbyint(static_cast<float>(x)) * kStep);
    }
  }
  // float32 has nothing below the grid: as it is.
  for (const double x : {0.75, -127.5, 511.0, 3e5, -1e30}) {
    EXPECT_EQ(OnGrid(x).item<double>(),
              static_cast<double>(static_cast<float>(x)));
  }
  EXPECT_EQ(OnGrid(1.0 + 1.0 / 128, at::kBFloat16).item<double>(),
            1.0 + 1.0 / 128);
  EXPECT_EQ(OnGrid(0.125, at::kHalf).item<double>(), 0.125);
  // Nothing is positive zero, whoever adds it.
  EXPECT_FALSE(std::signbit(OnGrid(-0.0).item<double>()));
  EXPECT_FALSE(std::signbit(OnGrid(-0.2 * kStep).item<double>()));
}

TEST_F(GridSumsTest, WhatIsNotFiniteStays) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(OnGrid(inf).item<double>(), inf);
  EXPECT_EQ(OnGrid(-inf).item<double>(), -inf);
  EXPECT_TRUE(std::isnan(OnGrid(NAN).item<double>()));
  const at::Tensor sums = OnGrid(inf);
  PutOnGrid(at::full({1}, -inf, at::kFloat), /*add=*/true, sums);
  EXPECT_TRUE(std::isnan(sums.item<double>()));
}

// They are sums in float64 like any others.
TEST_F(GridSumsTest, BeyondTheGridsRange) {
  const at::Tensor sums = OnGrid(3e30);
  PutOnGrid(at::full({1}, 2e30, at::kFloat), /*add=*/true, sums);
  PutOnGrid(at::full({1}, 1.0, at::kFloat), /*add=*/true, sums);
  EXPECT_FLOAT_EQ(static_cast<float>(sums.item<double>()), 5e30F);
}

// Gradients scaled by 2^16, on a grid of 16 bits fewer, are on that of the
// others.
TEST_F(GridSumsTest, TheGridFollowsTheScale) {
  const at::Tensor plain = at::empty({kNumel}, at::kDouble);
  PutOnGrid(Gradient(1), /*add=*/false, plain);
  SetGradientGrid(kGradientGridBits - 16);
  const at::Tensor scaled = at::empty({kNumel}, at::kDouble);
  PutOnGrid(Gradient(1).mul(65536), /*add=*/false, scaled);
  EXPECT_TRUE(scaled.div(65536).equal(plain));
}

TEST_F(GridSumsTest, BucketsExistFromTheFirstToTheLast) {
  GridBuckets buckets;
  for (int step = 0; step < 2; ++step) {
    EXPECT_FALSE(buckets.Add(1, Gradient(0), true, false).defined());
    EXPECT_FALSE(buckets.Add(0, Gradient(3), true, false).defined());
    EXPECT_FALSE(buckets.Add(1, Gradient(1), false, false).defined());
    EXPECT_TRUE(
        buckets.Add(1, Gradient(2), false, true).equal(SumOf({2, 0, 1}, 0)));
    // After a micro-step that threw a step may begin anew.
    EXPECT_TRUE(buckets.Add(0, Gradient(4), true, true).equal(SumOf({4}, 0)));
  }
}

}  // namespace
}  // namespace capstan
