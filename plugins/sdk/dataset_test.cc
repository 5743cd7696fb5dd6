// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/dataset.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace capstan
