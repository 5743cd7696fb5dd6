// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "plugins/precision/auto/auto.pb.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/precision.h"

namespace capstan::auto_ {
namespace {

PrecisionPolicy On(bool gpu, int compute_capability) {
  DeviceFacts device;
  device.gpu = gpu;
  device.compute_capability = compute_capability;
  return (*MakePlugin<Precision>(Config()))->PolicyOn(device);
}

TEST(AutoTest, TakesTheNarrowestThatTheDeviceIsFastIn) {
  EXPECT_EQ(On(true, 90).compute, c10::ScalarType::BFloat16);
  EXPECT_EQ(On(true, 80).compute, c10::ScalarType::BFloat16);
  EXPECT_FALSE(On(true, 80).loss_scaling.has_value());
  EXPECT_EQ(On(true, 75).compute, c10::ScalarType::Half);
  EXPECT_EQ(On(true, 70).compute, c10::ScalarType::Half);
  EXPECT_TRUE(On(true, 70).loss_scaling.has_value());
  EXPECT_EQ(On(true, 61).compute, c10::ScalarType::Float);
  EXPECT_EQ(On(false, 0).compute, c10::ScalarType::Float);
}

TEST(AutoTest, FitsAnyGpuWhereItsCapabilityIsNotKnown) {
  EXPECT_EQ(On(true, 0).compute, c10::ScalarType::Float);
}

TEST(AutoTest, SumsAndMastersAreFloat32) {
  for (const int capability : {0, 70, 80}) {
    const PrecisionPolicy policy = On(true, capability);
    EXPECT_EQ(policy.reduce, c10::ScalarType::Float) << capability;
    EXPECT_EQ(policy.master, c10::ScalarType::Float) << capability;
  }
}

}  // namespace
}  // namespace capstan::auto_
