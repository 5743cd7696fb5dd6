// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/status.h"
#include "plugins/precision/fp16/fp16.pb.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/precision.h"

namespace capstan::fp16 {
namespace {

TEST(Fp16Test, DefaultsAreGradScalers) {
  const PrecisionPolicy policy = (*MakePlugin<Precision>(Config()))->policy();
  EXPECT_EQ(policy.compute, c10::ScalarType::Half);
  EXPECT_EQ(policy.master, c10::ScalarType::Float);
  ASSERT_TRUE(policy.loss_scaling.has_value());
  EXPECT_EQ(policy.loss_scaling->initial_scale, 65536);
  EXPECT_EQ(policy.loss_scaling->growth_interval, 2000);
}

TEST(Fp16Test, BadSettingsNameTheirField) {
  Config config;
  config.set_initial_scale(1000);
  EXPECT_EQ(FieldOf(MakePlugin<Precision>(config).status()), "initial_scale");
  config.set_initial_scale(4);
  config.set_min_scale(8);
  EXPECT_EQ(FieldOf(MakePlugin<Precision>(config).status()), "min_scale");
  config.set_min_scale(0);
  config.set_growth_interval(-1);
  EXPECT_EQ(FieldOf(MakePlugin<Precision>(config).status()), "growth_interval");
}

}  // namespace
}  // namespace capstan::fp16
