// SPDX-License-Identifier: Apache-2.0
//
// Ranks on devices of several kinds.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"

namespace capstan {
namespace {

std::vector<double> Losses(const std::vector<int>& capabilities) {
  ToyRun run;
  run.ranks = static_cast<int>(capabilities.size());
  run.micro_batch = 6;
  run.train = "max_steps: 5";
  run.compute_capability = [capabilities](int rank) {
    return capabilities[rank];
  };
  return ReadMetrics(MustTrain(run)).losses();
}

TEST(DeviceTest, TheLeastAbleOneDecidesOnThePrecision) {
  const std::vector<double> narrow = Losses({80, 90});
  const std::vector<double> wide = Losses({75, 70});
  ASSERT_EQ(wide.size(), 5u);
  EXPECT_NE(narrow, wide);
  EXPECT_EQ(Losses({80, 75}), wide);
  EXPECT_EQ(Losses({75, 80}), wide);
}

}  // namespace
}  // namespace capstan
