// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/status.h"
#include "plugins/precision/fp8/fp8.pb.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/precision.h"

namespace capstan::fp8 {
namespace {

TEST(Fp8Test, ComputesInBfloat16AndSumsInFloat32) {
  const PrecisionPolicy policy = (*MakePlugin<Precision>(Config()))->policy();
  EXPECT_EQ(policy.compute, c10::ScalarType::BFloat16);
  EXPECT_EQ(policy.reduce, c10::ScalarType::Float);
  EXPECT_EQ(policy.master, c10::ScalarType::Float);
  EXPECT_FALSE(policy.loss_scaling.has_value());
}

TEST(Fp8Test, HandsOnItsFields) {
  Fp8Spec spec;
  ASSERT_TRUE((*MakePlugin<Precision>(Config()))->UsesFp8(&spec));
  EXPECT_EQ(spec.scaling, Fp8Scaling::kTensor);
  EXPECT_EQ(spec.bf16_layers_at_start, 1);
  EXPECT_EQ(spec.bf16_layers_at_end, 1);
  EXPECT_FALSE(spec.log_underflow);
  Config config;
  config.set_scaling(Config::ROW);
  config.set_bf16_layers_at_start(0);
  config.set_bf16_layers_at_end(3);
  config.set_log_underflow(true);
  ASSERT_TRUE((*MakePlugin<Precision>(config))->UsesFp8(&spec));
  EXPECT_EQ(spec.scaling, Fp8Scaling::kRow);
  EXPECT_EQ(spec.bf16_layers_at_start, 0);
  EXPECT_EQ(spec.bf16_layers_at_end, 3);
  EXPECT_TRUE(spec.log_underflow);
}

TEST(Fp8Test, WrongValuesNameTheirFields) {
  const auto field = [](const Config& config) {
    return FieldOf(MakePlugin<Precision>(config).status());
  };
  Config config;
  config.set_scaling(static_cast<Config::Scaling>(7));
  EXPECT_EQ(field(config), "scaling");
  config = Config();
  config.set_bf16_layers_at_start(-1);
  EXPECT_EQ(field(config), "bf16_layers_at_start");
  config = Config();
  config.set_bf16_layers_at_end(-1);
  EXPECT_EQ(field(config), "bf16_layers_at_end");
}

}  // namespace
}  // namespace capstan::fp8
