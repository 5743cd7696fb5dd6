// SPDX-License-Identifier: Apache-2.0
//
// Settings only: tests/parity and tests/conformance compare fsdp's results with
// `single` and with PyTorch, on real processes.
#include <gtest/gtest.h>

#include "base/status.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/fsdp/fsdp.pb.h"

namespace capstan::fsdp {
namespace {

TEST(FsdpTest, NegativeSettingsNameTheirField) {
  Config config;
  config.set_prefetch(-1);
  EXPECT_EQ(FieldOf(MakePlugin<Strategy>(config).status()), "prefetch");
  config.set_prefetch(0);
  config.set_shard_group_size(-2);
  EXPECT_EQ(FieldOf(MakePlugin<Strategy>(config).status()), "shard_group_size");
}

TEST(FsdpTest, HybridGroupsMustDivideTheRanks) {
  Config config;
  config.set_shard_group_size(2);
  const auto fsdp = MakePlugin<Strategy>(config);
  ASSERT_TRUE(fsdp.ok());
  StrategyRequest request;
  request.world_size = 4;
  EXPECT_TRUE((*fsdp)->Check(request).ok());
  request.world_size = 3;
  const absl::Status status = (*fsdp)->Check(request);
  EXPECT_EQ(FieldOf(status), "shard_group_size");
  EXPECT_EQ(status.message(),
            "is 2, which doesn't divide this run's 3 ranks into equal groups");
}

}  // namespace
}  // namespace capstan::fsdp
