// SPDX-License-Identifier: Apache-2.0
#include "plugins/precision/fp32/fp32.h"

#include <gtest/gtest.h>

namespace capstan {
namespace fp32 {
namespace {

TEST(Fp32Test, OneCopyOfTheParametersInFloat32) {
  const PrecisionPolicy policy = (*Fp32::Create(Config()))->policy();
  EXPECT_EQ(policy.compute, c10::ScalarType::Float);
  EXPECT_EQ(policy.reduce, c10::ScalarType::Float);
  EXPECT_EQ(policy.master, policy.compute);
  EXPECT_FALSE(policy.loss_scaling.has_value());
}

}  // namespace
}  // namespace fp32
}  // namespace capstan
