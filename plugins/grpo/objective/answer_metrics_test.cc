// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/answer_metrics.h"

#include <ATen/ops/from_blob.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

namespace capstan::grpo {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

Conversation Answer(int64_t tokens, bool truncated, int64_t calls,
                    int64_t failures) {
  Conversation answer;
  answer.text.resize(static_cast<size_t>(tokens) + 1);
  answer.prompt = 1;
  answer.truncated = truncated;
  answer.calls = calls;
  answer.failures = failures;
  return answer;
}

Rewards::Scores Scores() {
  Rewards::Scores scores;
  scores.totals = {3.0, 1.0};
  scores.values = {{2.0, 1.0}, {1.0, std::nan("")}};
  return scores;
}

TEST(AnswerMetricsTest, OfAnAnswerAndOfABatch) {
  const AnswerMetrics metrics(/*has_tools=*/true, {"right", "short"});
  EXPECT_THAT(
      metrics.names(),
      ElementsAre("reward", "reward_std", "frac_reward_zero_std",
                  "completions/mean_length", "completions/clipped_ratio",
                  "tools/call_frequency", "tools/failure_frequency",
                  "rewards/right/mean", "rewards/short/mean"));
  std::vector<double> first =
      metrics.Of(Answer(5, false, 3, 1), Scores(), /*i=*/0);
  EXPECT_THAT(first, ElementsAre(3, 0, 0, 5, 0, 3, 1, 2, 1));
  AnswerMetrics::SetGroup({2.0, 2.0}, &first);
  EXPECT_EQ(first[1], 0.0);
  EXPECT_EQ(first[2], 1.0);
  AnswerMetrics::SetGroup({3.0, 1.0}, &first);
  EXPECT_GT(first[1], 0.0);
  EXPECT_EQ(first[2], 0.0);
  std::vector<double> both = first;
  const std::vector<double> second =
      metrics.Of(Answer(9, true, 1, 0), Scores(), /*i=*/1);
  both.insert(both.end(), second.begin(), second.end());
  const at::Tensor sums =
      metrics.SumsOf(at::from_blob(both.data(), {2, 9}, at::kDouble));
  const auto row = [&sums](int64_t i) {
    return std::vector<double>{sums[i][0].item<double>(),
                               sums[i][1].item<double>()};
  };
  EXPECT_THAT(row(0), ElementsAre(4, 2));
  EXPECT_THAT(row(3), ElementsAre(14, 2));
  EXPECT_THAT(row(5), ElementsAre(4, 2));  // calls of two answers
  EXPECT_THAT(row(6), ElementsAre(1, 4));  // failures of four calls
  EXPECT_THAT(row(8), ElementsAre(1, 1));  // applies to one
}

TEST(AnswerMetricsTest, OfAnEvaluation) {
  const AnswerMetrics metrics(/*has_tools=*/true, {"right", "short"});
  const std::vector<Conversation> answers = {Answer(5, false, 3, 1),
                                             Answer(9, true, 1, 0)};
  const Measurement told =
      metrics.Summarize(metrics.Measure(answers, Scores()));
  EXPECT_THAT(told.scalars,
              ElementsAre(Pair("eval/reward", 2.0),
                          Pair("eval/completions/mean_length", 7.0),
                          Pair("eval/completions/clipped_ratio", 0.5),
                          Pair("eval/tools/call_frequency", 2.0),
                          Pair("eval/tools/failure_frequency", 0.25),
                          Pair("eval/rewards/right/mean", 1.5),
                          Pair("eval/rewards/short/mean", 1.0)));
}

}  // namespace
}  // namespace capstan::grpo
