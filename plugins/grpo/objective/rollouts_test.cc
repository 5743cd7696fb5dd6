// SPDX-License-Identifier: Apache-2.0
//
// Answers in the midst of which somebody else speaks, as what is trained on.
#include "plugins/grpo/objective/rollouts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace capstan::grpo {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kNone = kIgnoredTarget;

// A prompt of two tokens, and tokens 3 and 4 told.
Rollout OneOfTwoTurns() {
  Rollout rollout;
  rollout.text = {10, 11, 12, 13, 14, 15};
  rollout.prompt = 2;
  rollout.told = {3, 5};
  rollout.log_probs = {-1.0f, 0.0f, 0.0f, -2.0f};
  rollout.advantage = 0.5;
  rollout.metrics = {1.0};
  return rollout;
}

std::vector<int64_t> RowOf(const at::Tensor& tensor, int64_t row) {
  const at::Tensor values = tensor[row].contiguous();
  const int64_t* const first = values.const_data_ptr<int64_t>();
  return {first, first + values.numel()};
}

TEST(RolloutsTest, WhatWasToldHasNoLabels) {
  const Rollout turns = OneOfTwoTurns();
  Rollout plain = turns;
  plain.told.clear();
  const Rollout* const rows[] = {&turns, &plain};
  const Batch batch = BatchOf(rows, at::kCPU);
  EXPECT_THAT(RowOf(batch.at(kInputIds), 0),
              ElementsAre(10, 11, 12, 13, 14, 15));
  EXPECT_THAT(RowOf(batch.at(kLabels), 0),
              ElementsAre(kNone, kNone, 12, kNone, kNone, 15));
  EXPECT_THAT(RowOf(batch.at(kLabels), 1),
              ElementsAre(kNone, kNone, 12, 13, 14, 15));
}

TEST(RolloutsTest, ACheckpointKeepsWhatWasTold) {
  const Rollout turns = OneOfTwoTurns();
  const auto read = ReadState(SaveState({7, {turns}, {}}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->first_position, 7);
  EXPECT_EQ(read->rows[0].told, turns.told);
  EXPECT_EQ(read->rows[0].text, turns.text);
  for (const std::vector<int64_t>& told : std::vector<std::vector<int64_t>>{
           {3}, {5, 3}, {1, 3}, {3, 7}, {-1, 3}, {3, 5, 4, 6}}) {
    Rollout wrong = turns;
    wrong.told = told;
    EXPECT_FALSE(ReadState(SaveState({7, {wrong}, {}})).ok())
        << ::testing::PrintToString(told);
  }
}

TEST(RolloutsTest, ACheckpointKeepsWhatModelsSaid) {
  EXPECT_EQ(SaveState({}), "");
  const auto read = ReadState(SaveState({-1, {}, {{"judge", {"row", 0.5}}}}));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->rows.empty());
  ASSERT_EQ(read->probes.count("judge"), 1);
  EXPECT_EQ(read->probes.at("judge").row, "row");
  EXPECT_EQ(read->probes.at("judge").score, 0.5);
}

TEST(RolloutsTest, RanksShareWhatWasTold) {
  // What the other rank's sums would add: nothing.
  std::vector<Rollout> rows = {OneOfTwoTurns(), OneOfTwoTurns()};
  Share([](absl::Span<double>) {}, &rows);
  EXPECT_EQ(rows[1].told, OneOfTwoTurns().told);
  EXPECT_EQ(rows[1].log_probs, OneOfTwoTurns().log_probs);
}

}  // namespace
}  // namespace capstan::grpo
