// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace capstan::grpo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ProbeTest, AnotherScoreOfTheSameAnswerIsAnotherModel) {
  const Probes before = {{"judge", {"row", 0.5}}, {"tone", {"row", -20.0}}};
  EXPECT_EQ(WhatScoresOtherwise(before, before), "");
  EXPECT_EQ(WhatScoresOtherwise(
                before, {{"judge", {"row", 0.502}}, {"tone", {"row", -20.1}}}),
            "");
  EXPECT_THAT(WhatScoresOtherwise(
                  before, {{"judge", {"row", 0.75}}, {"tone", {"row", -20.0}}}),
              AllOf(HasSubstr("the reward judge scores an answer 0.75 that it "
                              "scored 0.5 before"),
                    Not(HasSubstr("tone"))));
}

TEST(ProbeTest, AnotherRowOrRewardSaysNothing) {
  const Probes before = {{"judge", {"row", 0.5}}};
  EXPECT_EQ(WhatScoresOtherwise(before, {{"judge", {"other", 9.0}}}), "");
  EXPECT_EQ(WhatScoresOtherwise(before, {{"tone", {"row", 9.0}}}), "");
  EXPECT_EQ(WhatScoresOtherwise({}, before), "");
}

}  // namespace
}  // namespace capstan::grpo
