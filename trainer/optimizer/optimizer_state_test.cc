// SPDX-License-Identifier: Apache-2.0
#include "trainer/optimizer/optimizer_state.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "plugins/sdk/idle_for_test.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

class FakeModel final : public IdleModel {
 public:
  FakeModel()
      : IdleModel(
            {{"matrix", {10, 10}}, {"vector", {70}}, {"frozen", {3}, 0, false}},
            /*units=*/1) {}
};

// 8-bit state with scales per block of 64 and a count per parameter.
class FakeOptimizer : public Optimizer {
 public:
  double learning_rate() const override { return 1.0; }
  std::vector<std::string> state_names() const override {
    std::vector<std::string> names;
    for (const OptimizerStateSpec& spec : specs_) names.push_back(spec.name);
    return names;
  }
  std::vector<OptimizerStateSpec> state_specs() const override {
    return specs_;
  }
  bool NeedsWhole(const Model&, int parameter) const override {
    return parameter == 0;
  }
  absl::Status Check(const OptimizerRequest& request) const override {
    return request.world_size == 13 ? absl::UnimplementedError("unlucky")
                                    : absl::OkStatus();
  }
  absl::Status Setup(const OptimizerContext& context) override {
    shards_ = context.shards.size();
    return absl::OkStatus();
  }
  void Update(const OptimizerStep&, const std::vector<ParameterSpec>&,
              OptimizerShard&, absl::Span<at::Tensor>) override {
    throw std::runtime_error("no such row");
  }

  std::vector<OptimizerStateSpec> specs_ = {
      {"momentum", at::kByte},
      {"scale", c10::ScalarType::Undefined, 64},
      {"count", at::kLong, 1, 2}};
  size_t shards_ = 0;
};

OptimizerShard Shard(std::vector<ParameterRange> ranges, int64_t numel) {
  OptimizerShard shard;
  shard.master = at::zeros({numel}, at::kFloat);
  shard.ranges = std::move(ranges);
  return shard;
}

TEST(OptimizerStateTest, HasTheLengthsAndDtypesOfItsSpecs) {
  FakeOptimizer optimizer;
  std::vector<OptimizerShard> shards = {
      Shard({{0, 0, 100, 0}, {1, 0, 64, 128}}, 192),
      Shard({{1, 64, 6, 0}}, 64)};
  OptimizerState state;
  ASSERT_TRUE(SetUpOptimizer(optimizer, FakeModel(), shards, &state).ok());
  EXPECT_EQ(optimizer.shards_, 2);
  ASSERT_EQ(state.size(), 2);
  EXPECT_EQ(state[0][0].numel(), 192);
  EXPECT_EQ(state[0][0].scalar_type(), at::kByte);
  EXPECT_EQ(state[0][1].numel(), 3);
  EXPECT_EQ(state[0][1].scalar_type(), at::kFloat);
  EXPECT_EQ(state[0][2].numel(), 4);
  EXPECT_EQ(state[1][2].numel(), 2);
  EXPECT_EQ(state[1][2].scalar_type(), at::kLong);
  for (const std::vector<at::Tensor>& tensors : state) {
    for (const at::Tensor& tensor : tensors) {
      EXPECT_EQ(tensor.count_nonzero().item<int64_t>(), 0);
    }
  }
  // 192 bytes, 3 floats, 2 numbers for each of 2 parameters.
  EXPECT_EQ(OptimizerStateBytes(optimizer, FakeModel(), 192, at::kFloat),
            192 + 3 * 4 + 2 * 2 * 8);
}

TEST(OptimizerStateTest, AStrategyThatCutsElsewhereIsRefused) {
  FakeOptimizer optimizer;
  const auto set_up = [&](std::vector<ParameterRange> ranges) {
    const std::vector<OptimizerShard> shards = {Shard(std::move(ranges), 256)};
    OptimizerState state;
    return std::string(
        SetUpOptimizer(optimizer, FakeModel(), shards, &state).message());
  };
  EXPECT_EQ(set_up({{0, 0, 100, 0}}), "");
  EXPECT_EQ(set_up({{1, 64, 6, 64}}), "");
  EXPECT_THAT(set_up({{0, 0, 64, 0}}), HasSubstr("needs 'matrix' whole"));
  EXPECT_THAT(set_up({{0, 64, 36, 0}}), HasSubstr("needs 'matrix' whole"));
  for (const ParameterRange& range : std::vector<ParameterRange>{
           {1, 32, 38, 0}, {1, 0, 32, 0}, {1, 0, 70, 32}}) {
    EXPECT_THAT(set_up({range}), HasSubstr("in blocks of 64 elements"));
  }
}

TEST(OptimizerStateTest, SpecsThatCannotBeAreRefused) {
  FakeOptimizer optimizer;
  OptimizerRequest request;
  EXPECT_TRUE(CheckOptimizer(optimizer, request).ok());
  request.world_size = 13;
  EXPECT_EQ(CheckOptimizer(optimizer, request).message(), "unlucky");
  request.world_size = 1;
  for (const OptimizerStateSpec& bad :
       {OptimizerStateSpec{"master"}, OptimizerStateSpec{""},
        OptimizerStateSpec{"scale"}, OptimizerStateSpec{"strategy.a"},
        OptimizerStateSpec{"a", at::kByte, 48},
        OptimizerStateSpec{"a", at::kByte, 0},
        OptimizerStateSpec{"a", at::kByte, 8192},
        OptimizerStateSpec{"a", at::kByte, 1, -1}}) {
    optimizer.specs_[0] = bad;
    EXPECT_FALSE(CheckOptimizer(optimizer, request).ok())
        << bad.name << " " << bad.block;
  }
}

// A third of a shard, and the corresponding part of its state.
TEST(OptimizerStateTest, PartsOfElements) {
  const StateShape blocks = {{"scale", at::kFloat, 64}};
  const StateShape each = {{"count", at::kLong, 1, 2}};
  // The last one ends its parameter.
  const std::vector<ParameterRange> ranges = {
      {3, 0, 64, 0}, {2, 0, 64, 64}, {0, 0, 128, 128}, {1, 128, 150, 320}};
  const StatePart all = StatePartOf(blocks, ranges, 3, 320, 470);
  EXPECT_EQ(all.begin, 2);
  EXPECT_EQ(all.length, 3);
  EXPECT_EQ(all.offset, 5);
  const StatePart part = StatePartOf(blocks, ranges, 3, 384, 448);
  EXPECT_EQ(part.begin, 3);
  EXPECT_EQ(part.length, 1);
  EXPECT_EQ(part.offset, 6);
  const StatePart counts = StatePartOf(each, ranges, 3, 384, 448);
  EXPECT_EQ(counts.begin, 0);
  EXPECT_EQ(counts.length, 2);
  EXPECT_EQ(counts.offset, 6);
  EXPECT_EQ(StateNumel(blocks, 1, 278), 5);
  EXPECT_EQ(StateNumel(each, 1, 278), 2);
}

// State of which a parameter may have a length of its own, or none.
TEST(OptimizerStateTest, ParametersOfTheirOwnLength) {
  const StateShape shape = {{"scale", at::kFloat, 64},
                            {Optimizer::kByRange, 0, 7}};
  const std::vector<ParameterRange> ranges = {
      {0, 128, 100, 0}, {1, 0, 50, 128}, {2, 0, 30, 192}, {0, 0, 64, 256}};
  OptimizerShard shard = Shard(ranges, 320);
  EXPECT_EQ(StateLength(shape, shard), 2 + 0 + 7 + 1);
  EXPECT_EQ(StateNumel(shape, 0, 228), 4);
  EXPECT_EQ(StateNumel(shape, 1, 50), 0);
  EXPECT_EQ(StateNumel(shape, 2, 30), 7);
  EXPECT_FALSE(shape.per_parameter(0));
  EXPECT_TRUE(shape.per_parameter(2));
  const StatePart cut = StatePartOf(shape, ranges, 0, 64, 100);
  EXPECT_EQ(cut.begin, 3);
  EXPECT_EQ(cut.length, 1);
  EXPECT_EQ(cut.offset, 1);
  EXPECT_EQ(StatePartOf(shape, ranges, 1, 128, 178).length, 0);
  const StatePart own = StatePartOf(shape, ranges, 2, 192, 222);
  EXPECT_EQ(own.begin, 0);
  EXPECT_EQ(own.length, 7);
  EXPECT_EQ(own.offset, 2);
  EXPECT_EQ(StatePartOf(shape, ranges, 3, 256, 320).offset, 9);
}

TEST(OptimizerStateTest, WhatUpdateThrowsNamesPluginAndStep) {
  FakeOptimizer optimizer;
  OptimizerShard shard = Shard({{0, 0, 100, 0}}, 128);
  const absl::Status status =
      UpdateShard("acme.lion", 7, optimizer, {}, FakeModel(), shard, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "step 7: acme.lion: no such row");
}

}  // namespace
}  // namespace capstan
