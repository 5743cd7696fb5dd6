// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include "trainer/session/set_up.h"

namespace capstan {
namespace {

TEST(DeterministicTest, NothingIsLeftToChance) {
  unsetenv("CUBLAS_WORKSPACE_CONFIG");
  at::Context& context = at::globalContext();
  ASSERT_FALSE(context.deterministicAlgorithms());
  ASSERT_TRUE(context.userEnabledCuDNNSDP());
  ComputeDeterministically();
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_FALSE(context.deterministicAlgorithmsWarnOnly());
  EXPECT_FALSE(context.userEnabledCuDNNSDP());
  EXPECT_TRUE(context.userEnabledFlashSDP());
  EXPECT_TRUE(context.deterministicCuDNN());
  EXPECT_FALSE(context.benchmarkCuDNN());
  EXPECT_FALSE(context.deterministicFillUninitializedMemory());
  // way.
  EXPECT_EQ(std::string(getenv("CUBLAS_WORKSPACE_CONFIG")), ":4096:8");
  EXPECT_THROW(context.alertNotDeterministic("an operator"), c10::Error);
}

TEST(DeterministicTest, KeepsTheUsersWorkspace) {
  setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8", /*replace=*/1);
  ComputeDeterministically();
  EXPECT_EQ(std::string(getenv("CUBLAS_WORKSPACE_CONFIG")), ":16:8");
}

}  // namespace
}  // namespace capstan
