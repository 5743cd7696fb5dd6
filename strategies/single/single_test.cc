// SPDX-License-Identifier: Apache-2.0
//
// tests/parity compares its results with PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/single/single.pb.h"

namespace capstan::single {
namespace {

TEST(SingleTest, RunsOnOneRankOnly) {
  const auto single = MakePlugin<Strategy>(Config());
  ASSERT_TRUE(single.ok()) << single.status();
  StrategyRequest request;
  EXPECT_TRUE((*single)->Check(request).ok());
  request.world_size = 2;
  EXPECT_THAT(std::string((*single)->Check(request).message()),
              testing::HasSubstr("this run has 2"));
}

}  // namespace
}  // namespace capstan::single
