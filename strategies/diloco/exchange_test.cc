// SPDX-License-Identifier: Apache-2.0
#include "strategies/diloco/exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "plugins/sdk/idle_for_test.h"

namespace capstan::diloco {
namespace {

// Rank 0 of `ranks`, of which each other sends half of what this one does, in
// INT8 the steps' other halves.
class HalvingGroup final : public IdleGroup {
 public:
  explicit HalvingGroup(int ranks) : IdleGroup(0, ranks), ranks_(ranks) {}
  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    tensor.mul_(Sum());
    return std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    output.copy_(input.narrow(0, 0, output.numel())).mul_(Sum());
    return std::make_unique<IdleWork>();
  }
  // The others' scales are half of this rank's.
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    sent = input.numel();
    const int64_t scales = input.numel() / 260 * 4;
    for (int rank = 0; rank < ranks_; ++rank) {
      const at::Tensor part = output.narrow(0, rank * sent, sent);
      part.copy_(input);
      if (rank == 0) continue;
      const at::Tensor scale = input.narrow(0, sent - scales, scales).clone();
      scale.view(at::kFloat).mul_(0.5);
      part.narrow(0, sent - scales, scales).copy_(scale);
    }
    return std::make_unique<IdleWork>();
  }
  // Of this rank's values.
  double Sum() const { return 1.0 + 0.5 * (ranks_ - 1); }
  double Mean() const { return Sum() / ranks_; }

  int64_t sent = 0;

 private:
  const int ranks_;
};

at::Tensor Mean(const at::Tensor& shared, const at::Tensor& own,
                const ExchangeOptions& options, ProcessGroup* group) {
  return Exchange(shared, own, options, group).Mean();
}

constexpr ExchangeOptions kFloats = {Config::FLOAT32, /*overlaps=*/false};
constexpr ExchangeOptions kBytes = {Config::INT8, /*overlaps=*/false};
constexpr ExchangeOptions kFloatsAhead = {Config::FLOAT32, /*overlaps=*/true};
constexpr ExchangeOptions kBytesAhead = {Config::INT8, /*overlaps=*/true};

TEST(ExchangeTest, FloatsAreSummedAndDivided) {
  HalvingGroup group(3);
  const at::Tensor shared = at::full({5}, 3.0f);
  const at::Tensor own = at::arange(5).to(at::kFloat);
  EXPECT_TRUE(at::allclose(Mean(shared, own, kFloats, &group),
                           (shared - own) * group.Mean()));
}

// Whose last block isn't full.
TEST(ExchangeTest, BytesAreOffByHalfAStepOfTheirBlock) {
  HalvingGroup group(2);
  constexpr int64_t kCount = 100 * 256 + 1;
  const at::Tensor shared = at::rand({kCount}) - 0.5;
  const at::Tensor own = at::zeros({kCount});
  const at::Tensor mean = Mean(shared, own, kBytes, &group);
  EXPECT_LE((mean - shared * group.Mean()).abs().max().item<float>(),
            0.5001 * 0.5 / 127);
  EXPECT_EQ(group.sent, 101 * 260);
  EXPECT_EQ(Exchange::Sent(kCount, kBytes, 2), 101 * 260);
}

// Slices are summed first; this rank's is gathered from all here.
TEST(ExchangeTest, AmongManyRanksMeansArePacked) {
  HalvingGroup group(8);
  const at::Tensor shared = at::full({8 * 256}, 2.0f);
  const at::Tensor mean = Mean(shared, at::zeros({8 * 256}), kBytes, &group);
  EXPECT_EQ(group.sent, 260);
  EXPECT_NEAR(mean[0].item<float>(), 2.0 * group.Mean(), 1e-6);
  EXPECT_NEAR(mean[256].item<float>(), 0.5 * 2.0 * group.Mean(), 1e-6);
  EXPECT_LT(Exchange::Sent(1 << 20, kBytes, 8),
            0.63 * Exchange::Sent(1 << 20, kFloats, 8));
}

TEST(ExchangeTest, ABlockOfZerosStaysZero) {
  HalvingGroup group(2);
  const at::Tensor shared = at::zeros({300});
  shared.narrow(0, 256, 44).fill_(1.0);
  const at::Tensor mean = Mean(shared, at::zeros({300}), kBytes, &group);
  EXPECT_TRUE(at::allclose(mean, shared * group.Mean()));
  EXPECT_EQ(mean.narrow(0, 0, 256).abs().max().item<float>(), 0.0f);
}

TEST(ExchangeTest, WhatIsNotFiniteIsSeen) {
  HalvingGroup group(2);
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    const at::Tensor shared = at::full({10}, 1.0f);
    shared[3] = bad;
    EXPECT_FALSE(std::isfinite(
        Mean(shared, at::zeros({10}), kBytes, &group).sum().item<float>()));
  }
}

// A rank, whose collectives are cut off where `cuts`: they leave outputs as
// they were, and Wait says nothing.
class CutGroup final : public IdleGroup {
 public:
  explicit CutGroup(int ranks) : IdleGroup(0, ranks), ranks_(ranks) {}
  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    if (!cuts) tensor.mul_(ranks_);
    return std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    output.view({ranks_, -1})[0].copy_(input);
    for (int r = 1; r < ranks_ && !cuts; ++r) {
      output.view({ranks_, -1})[r].copy_(input);
    }
    return std::make_unique<IdleWork>();
  }

  bool cuts = false;

 private:
  const int ranks_;
};

TEST(ExchangeTest, OneAheadIsTheSameAndKnowsWhetherItWasCutOff) {
  CutGroup group(6);
  const at::Tensor shared = at::rand({1000});
  const at::Tensor own = at::rand({1000});
  for (const ExchangeOptions& options : {kFloatsAhead, kBytesAhead}) {
    group.cuts = false;
    const at::Tensor changes = shared - own;
    EXPECT_TRUE(
        at::allclose(Mean(shared, own, options, &group), changes, 0.0, 0.01));
    group.cuts = true;
    EXPECT_THROW(Mean(shared, own, options, &group), CommunicationError);
  }
}

// What is sent ahead is sent in one collective.
TEST(ExchangeTest, BytesAheadAreGatheredFromAll) {
  EXPECT_EQ(Exchange::Sent(2560, kBytesAhead, 8), 7 * 2600);
  EXPECT_EQ(Exchange::Sent(2560, kFloatsAhead, 8), 2 * 2560 * 4 * 7 / 8);
  EXPECT_LE(
      Exchange::Sent(1 << 20, kBytesAhead, kMostThatOverlapInBytes),
      1.02 * Exchange::Sent(1 << 20, kFloatsAhead, kMostThatOverlapInBytes));
}

}  // namespace
}  // namespace capstan::diloco
