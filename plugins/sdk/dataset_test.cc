// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/dataset.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <stdexcept>

namespace capstan {
namespace {

TEST(CountTokensTest, AllPositionsWhereNothingSaysOtherwise) {
  const Batch batch = {{"input_ids", at::zeros({3, 7}, at::kLong)}};
  EXPECT_EQ(CountTokens(batch).tokens, 21);
  EXPECT_EQ(CountTokens(batch).padding, 0);
}

TEST(CountTokensTest, TheReadersCounts) {
  const Batch batch = {{"input_ids", at::zeros({3, 7}, at::kLong)},
                       {kTokenCounts, at::tensor({7, 2, 0}, at::kLong)}};
  EXPECT_EQ(CountTokens(batch).tokens, 9);
  EXPECT_EQ(CountTokens(batch).padding, 12);
}

TEST(RequiredTensorTest, WhatIsMissingIsSaidWithWhatThereIs) {
  const Batch batch = {{"x", at::zeros({3})},
                       {"y", at::zeros({3})},
                       {kSamplePosition, at::zeros({3}, at::kLong)}};
  EXPECT_TRUE(RequiredTensor(batch, "x").is_same(batch.at("x")));
  try {
    RequiredTensor(batch, kInputIds);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "the batch has no \"input_ids\", only: x, y");
  }
}

TEST(HostTensorTest, IsTheCopyThatTheCoreHasLeft) {
  const at::Tensor copy = at::zeros({3}, at::kLong);
  const Batch batch = {{kLabels, at::tensor({1, 2, 3}, at::kLong)},
                       {HostCopyName(kLabels), copy},
                       {kPositions, at::tensor({4, 5, 6}, at::kLong)}};
  EXPECT_TRUE(HostTensor(batch, kLabels).is_same(copy));
  EXPECT_TRUE(HostTensor(batch, kPositions).is_same(batch.at(kPositions)));
  EXPECT_FALSE(HostTensor(batch, kInputIds).defined());
}

}  // namespace
}  // namespace capstan
