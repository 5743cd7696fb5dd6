// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/token_objective.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"

namespace capstan {
namespace {

class FakeModel final : public TokenModel {
 public:
  explicit FakeModel(bool causal) : causal_(causal) {}
  int64_t vocab_size() const override { return 7; }
  int64_t max_positions() const override { return 100; }
  bool causal() const override { return causal_; }
  at::Tensor Logits(const TokenInput&, UnitRunner&) override { return {}; }
  at::Tensor CrossEntropySum(const TokenInput&, const TokenTargets&,
                             UnitRunner&) override {
    return {};
  }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return absl::UnimplementedError("no cache");
  }

 private:
  const bool causal_;
};

TokenInput InputOf(int64_t rows, int64_t length) {
  TokenInput input;
  input.tokens = at::ones({rows, length}, at::kLong);
  return input;
}

TEST(AddPaddingTest, CausalRowsNeedNoPositions) {
  TokenInput input = InputOf(2, 3);
  TokenTargets targets = {at::ones({2, 3}, at::kLong),
                          at::ones({2, 3}, at::kFloat)};
  AddPadding(FakeModel(/*causal=*/true), 2, &input, &targets);
  EXPECT_EQ(input.tokens.sizes(), at::IntArrayRef({2, 5}));
  EXPECT_FALSE(input.positions.defined());
  const int64_t none = kIgnoredTarget;
  EXPECT_TRUE(
      at::equal(targets.tokens[1],
                at::tensor({int64_t{1}, int64_t{1}, int64_t{1}, none, none})));
  EXPECT_TRUE(at::equal(targets.weights[1],
                        at::tensor({1.0f, 1.0f, 1.0f, 0.0f, 0.0f})));
}

// Where a token sees what is behind it, padding is a document of its own.
TEST(AddPaddingTest, PaddingIsSeenByNoOther) {
  const at::Tensor wanted = at::tensor({0, 1, 2, 0, 1}, at::kLong);
  TokenInput input = InputOf(2, 3);
  TokenTargets targets = {at::ones({2, 3}, at::kLong), at::Tensor()};
  AddPadding(FakeModel(/*causal=*/false), 2, &input, &targets);
  ASSERT_TRUE(input.positions.defined());
  EXPECT_TRUE(at::equal(input.positions[0], wanted));
  EXPECT_TRUE(at::equal(input.positions[1], wanted));
  EXPECT_FALSE(targets.weights.defined());

  input = InputOf(1, 3);
  input.positions = at::tensor({0, 0, 1}, at::kLong).view({1, 3});
  AddPadding(FakeModel(/*causal=*/false), 2, &input, &targets);
  EXPECT_TRUE(
      at::equal(input.positions[0], at::tensor({0, 0, 1, 0, 1}, at::kLong)));
}

TEST(AddPaddingTest, NothingToAdd) {
  TokenInput input = InputOf(2, 3);
  const at::Tensor tokens = input.tokens;
  TokenTargets targets = {at::ones({2, 3}, at::kLong), at::Tensor()};
  AddPadding(FakeModel(/*causal=*/false), 0, &input, &targets);
  EXPECT_TRUE(input.tokens.is_same(tokens));
  EXPECT_FALSE(input.positions.defined());
}

TEST(TokensToAddTest, OnlyOnGpus) {
  const Batch batch = {{kInputIds, at::ones({2, 3}, at::kLong)},
                       {kTokenCounts, at::tensor({3, 2}, at::kLong)}};
  EXPECT_EQ(TokensToAdd(batch, 100), 0);
}

TEST(LengthOnGpuTest, AFewLengthsAndLittleMore) {
  EXPECT_EQ(LengthOnGpu(1, 1000), 8);
  EXPECT_EQ(LengthOnGpu(33, 1000), 40);
  EXPECT_EQ(LengthOnGpu(130, 1000), 144);
  EXPECT_EQ(LengthOnGpu(512, 1000), 512);
  EXPECT_EQ(LengthOnGpu(513, 1000), 576);
  EXPECT_EQ(LengthOnGpu(999, 1000), 1000) << "the most";
  EXPECT_EQ(LengthOnGpu(1001, 1000), 1001);
  for (int64_t length = 64; length < 5000; ++length) {
    EXPECT_LE(LengthOnGpu(length, 1 << 20), length + length / 8) << length;
  }
}

}  // namespace
}  // namespace capstan
