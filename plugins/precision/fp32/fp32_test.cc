// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plugins/precision/fp32/fp32.pb.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/precision.h"

namespace capstan::fp32 {
namespace {

TEST(Fp32Test, OneCopyOfTheParametersInFloat32) {
  const PrecisionPolicy policy = (*MakePlugin<Precision>(Config()))->policy();
  EXPECT_EQ(policy.compute, c10::ScalarType::Float);
  EXPECT_EQ(policy.reduce, c10::ScalarType::Float);
  EXPECT_EQ(policy.master, policy.compute);
  EXPECT_FALSE(policy.loss_scaling.has_value());
}

}  // namespace
}  // namespace capstan::fp32
