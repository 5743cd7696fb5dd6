// SPDX-License-Identifier: Apache-2.0
//
// A reward model whose program, this one in place of the trainer, hangs or
// fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <iostream>
#include <string>

#include "absl/strings/match.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/probe.h"

namespace capstan::grpo {
namespace {

using ::testing::HasSubstr;

// Is what `trainer score` becomes, before there is a main().
const bool kIsScore = [] {
  const std::string words = ReadWholeFile("/proc/self/cmdline").value();
  if (!absl::StartsWith(words, std::string("trainer\0score\0", 14))) {
    return false;
  }
  if (absl::StrContains(words, "--gpu")) {
    std::cerr << "ERROR: --gpu: there is none\n";
    _exit(1);
  }
  if (absl::StrContains(words, "--model=runs/good")) {
    std::cout << "{\"reward\": 0.25}" << std::endl;
    _exit(0);
  }
  for (;;) pause();
}();

absl::Status Check(const RewardModel& config) {
  EXPECT_FALSE(kIsScore);
  const MadeReward reward = NewModel(config);
  EXPECT_TRUE(reward.ok()) << reward.status();
  return (*reward)->CheckRow("{\"prompt\": \"7+5=\"}");
}

TEST(ModelRewardTest, OneThatHangsIsToldBeforeTraining) {
  RewardModel config;
  config.set_path("runs/judge");
  config.set_timeout_seconds(0.2);
  const absl::Status status = Check(config);
  EXPECT_EQ(FieldOf(status).value_or(""), "timeout_seconds");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("runs/judge hasn't scored a text within 0.2 s"));
}

// Rather than computing on the CPU.
TEST(ModelRewardTest, AGpuThatIsntThereIsToldBeforeTraining) {
  RewardModel config;
  config.set_path("runs/judge");
  config.set_gpu("0");
  const absl::Status status = Check(config);
  EXPECT_EQ(FieldOf(status).value_or(""), "gpu");
  EXPECT_THAT(std::string(status.message()), HasSubstr("there is none"));
}

TEST(ModelRewardTest, WhatItSaysOfTheFirstRowIsKept) {
  RewardModel config;
  config.set_path("runs/good");
  const MadeReward reward = NewModel(config);
  ASSERT_TRUE(reward.ok()) << reward.status();
  const auto* const probed = dynamic_cast<const Probed*>(reward->get());
  ASSERT_NE(probed, nullptr);
  EXPECT_FALSE(probed->probe().has_value());
  ASSERT_TRUE((*reward)->CheckRow("{\"prompt\": \"7+5=\"}").ok());
  ASSERT_TRUE(probed->probe().has_value());
  EXPECT_EQ(probed->probe()->score, 0.25);
  const std::string first = probed->probe()->row;
  ASSERT_TRUE((*reward)->CheckRow("{\"prompt\": \"7+6=\"}").ok());
  EXPECT_EQ(probed->probe()->row, first);
}

TEST(ModelRewardTest, EachRowNeedsAPrompt) {
  RewardModel config;
  config.set_path("runs/good");
  const MadeReward reward = NewModel(config);
  ASSERT_TRUE(reward.ok()) << reward.status();
  EXPECT_TRUE((*reward)->CheckRow("{\"prompt\": \"7+5=\"}").ok());
  EXPECT_TRUE((*reward)->CheckRow("{\"messages\": []}").ok());
  EXPECT_THAT(
      std::string((*reward)->CheckRow("{\"question\": \"\"}").message()),
      HasSubstr("prompt"));
}

}  // namespace
}  // namespace capstan::grpo
