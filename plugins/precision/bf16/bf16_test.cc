// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/status.h"
#include "plugins/precision/bf16/bf16.pb.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/precision.h"

namespace capstan::bf16 {
namespace {

TEST(Bf16Test, SumsGradientsInFloat32UnlessToldOtherwise) {
  Config config;
  const PrecisionPolicy policy = (*MakePlugin<Precision>(config))->policy();
  EXPECT_EQ(policy.compute, c10::ScalarType::BFloat16);
  EXPECT_EQ(policy.reduce, c10::ScalarType::Float);
  EXPECT_EQ(policy.master, c10::ScalarType::Float);
  EXPECT_FALSE(policy.loss_scaling.has_value());
  config.set_reduce_dtype(Config::BFLOAT16);
  EXPECT_EQ((*MakePlugin<Precision>(config))->policy().reduce,
            c10::ScalarType::BFloat16);
}

TEST(Bf16Test, UnknownReduceDtypeNamesItsField) {
  Config config;
  config.set_reduce_dtype(static_cast<Config::ReduceDtype>(7));
  EXPECT_EQ(FieldOf(MakePlugin<Precision>(config).status()), "reduce_dtype");
}

}  // namespace
}  // namespace capstan::bf16
