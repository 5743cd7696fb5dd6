// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/status.h"
#include "plugins/llada/masked_diffusion/fake_model.h"
#include "plugins/llada/masked_diffusion/masked_diffusion.h"

namespace capstan::masked_diffusion {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMask = FakeModel::kMask;
using Text = std::vector<int64_t>;

SamplerOptions Options(int64_t max_new_tokens, int64_t block_length,
                       int64_t steps) {
  SamplerOptions options;
  options.max_new_tokens = max_new_tokens;
  options.block_length = block_length;
  options.steps = steps;
  return options;
}

TEST(ScheduleTest, TheReferencesDefaults) {
  const Schedule schedule = ScheduleOf({}, 4096).value();
  EXPECT_EQ(schedule.blocks, 1);
  EXPECT_EQ(schedule.block_length, 128);
  EXPECT_EQ(schedule.steps_per_block, 128);
  EXPECT_EQ(schedule.TokensIn(127), 1);
}

TEST(ScheduleTest, WhatIsLeftOpenFollowsTheLength) {
  const Schedule one = ScheduleOf(Options(40, 0, 0), 4096).value();
  EXPECT_EQ(one.blocks, 1);
  EXPECT_EQ(one.block_length, 40);
  EXPECT_EQ(one.steps_per_block, 40);
  const Schedule four = ScheduleOf(Options(512, 0, 0), 4096).value();
  EXPECT_EQ(four.blocks, 4);
  EXPECT_EQ(four.block_length, 128);
  EXPECT_EQ(four.steps_per_block, 128);
}

TEST(ScheduleTest, TheRemainderIsChosenFirst) {
  const Schedule schedule = ScheduleOf(Options(24, 12, 10), 4096).value();
  EXPECT_EQ(schedule.blocks, 2);
  Text counts;
  for (int64_t step = 0; step < schedule.steps_per_block; ++step) {
    counts.push_back(schedule.TokensIn(step));
  }
  EXPECT_THAT(counts, ElementsAre(3, 3, 2, 2, 2));
}

TEST(ScheduleTest, NoMoreThanTheModelHasPositionsFor) {
  EXPECT_EQ(ScheduleOf(Options(32, 8, 16), 20).value().blocks, 2);
  EXPECT_EQ(ScheduleOf(Options(32, 8, 16), 20).value().steps_per_block, 4);
  EXPECT_EQ(ScheduleOf(Options(32, 0, 0), 20).value().block_length, 20);
  const absl::Status none = ScheduleOf(Options(32, 8, 16), 7).status();
  EXPECT_THAT(std::string(none.message()), HasSubstr("for 7 tokens"));
  EXPECT_FALSE(ScheduleOf(Options(32, 0, 0), 0).ok());
}

TEST(ScheduleTest, WhatDoesNotDivideNamesItsField) {
  const absl::Status block = ScheduleOf(Options(20, 8, 0), 99).status();
  EXPECT_EQ(FieldOf(block), "block_length");
  EXPECT_THAT(std::string(block.message()),
              HasSubstr("divide max_new_tokens, which is 20; it is 8"));
  const absl::Status steps = ScheduleOf(Options(24, 8, 16), 99).status();
  EXPECT_EQ(FieldOf(steps), "steps");
  EXPECT_THAT(std::string(steps.message()), HasSubstr("the 3 blocks of 8"));
}

TEST(ScheduleTest, NumbersOutOfRangeNameTheirField) {
  const auto field = [](const SamplerOptions& options) {
    return FieldOf(ScheduleOf(options, 4096).status());
  };
  EXPECT_EQ(field(Options(0, 0, 0)), "max_new_tokens");
  EXPECT_EQ(field(Options(8, -1, 0)), "block_length");
  EXPECT_EQ(field(Options(8, 0, -1)), "steps");
  SamplerOptions options;
  options.temperature = -1.0;
  EXPECT_EQ(field(options), "temperature");
  options.temperature = 0.0;
  options.cfg_scale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(field(options), "cfg_scale");
  options.cfg_scale = 0.0;
  options.confidence_threshold = 1.0;
  EXPECT_EQ(field(options), "confidence_threshold");
  options.confidence_threshold = 0.9;
  options.random_remasking = true;
  EXPECT_EQ(field(options), "confidence_threshold");
}

TEST(ScheduleTest, ACacheIsForBlocksAndIsRefreshedAfterAStepOrMore) {
  const auto status = [](const SamplerOptions& options) {
    return ScheduleOf(options, 4096).status();
  };
  SamplerOptions options = Options(8, 4, 0);
  options.cache = Config::DUAL;
  EXPECT_TRUE(status(options).ok()) << status(options);
  options.cache_refresh = 0;
  EXPECT_EQ(FieldOf(status(options)), "cache_refresh");
  EXPECT_THAT(std::string(status(options).message()),
              HasSubstr("must be greater than 0, is 0"));
  options.cache_refresh = 3;
  EXPECT_TRUE(status(options).ok()) << status(options);
  options.block_length = 0;
  EXPECT_EQ(FieldOf(status(options)), "block_length");
  options.cache = Config::NONE;
  EXPECT_EQ(FieldOf(status(options)), "cache_refresh");
}

class UnmaskTest : public testing::Test {
 protected:
  Text Sample(const SamplerOptions& options) {
    const auto text = Unmask(
        model_, {1, 2}, kMask, options,
        [this](absl::Span<const int64_t> t) {
          told_.emplace_back(t.begin(), t.end());
        },
        runner_);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or(Text());
  }
  // The positions that each step chose.
  std::vector<std::vector<int64_t>> Steps() const {
    std::vector<std::vector<int64_t>> steps(told_.size());
    Text before = {1, 2};
    before.resize(told_[0].size(), kMask);
    for (size_t s = 0; s < told_.size(); ++s) {
      for (size_t i = 0; i < before.size(); ++i) {
        if (told_[s][i] != before[i]) steps[s].push_back(i);
      }
      before = told_[s];
    }
    return steps;
  }
  // Position t holds token t, with more confidence further right.
  void SureOfTheRight() {
    model_.logit = [](int64_t, int64_t t, int64_t v) {
      return v == t ? 1.0f + 0.1f * static_cast<float>(t) : 0.0f;
    };
  }

  FakeModel model_;
  PlainRunner runner_;
  std::vector<Text> told_;
};

TEST_F(UnmaskTest, TheSurestOfABlockComeFirst) {
  SureOfTheRight();
  EXPECT_THAT(Sample(Options(6, 3, 4)), ElementsAre(1, 2, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(Steps(), ElementsAre(ElementsAre(3, 4), ElementsAre(2),
                                   ElementsAre(6, 7), ElementsAre(5)));
  ASSERT_EQ(model_.inputs.size(), 4u);
  // The model sees the whole text, with later blocks masked.
  EXPECT_EQ(model_.inputs[1].tokens.size(1), 8);
  EXPECT_EQ(model_.inputs[1].tokens[0][7].item<int64_t>(), kMask);
  EXPECT_FALSE(model_.inputs[0].positions.defined());
}

TEST_F(UnmaskTest, WhatIsSureEnoughIsChosenToo) {
  SureOfTheRight();
  const Text all = Sample(Options(6, 3, 6));
  const auto probability = [&](int64_t t) {
    const double sure = std::exp(1.0 + 0.1 * static_cast<double>(t));
    return sure / (sure + static_cast<double>(model_.vocab_size()) - 1.0);
  };
  told_.clear();
  SamplerOptions options = Options(6, 3, 6);
  // Positions 3 and 4 of the first block, all of the second.
  options.confidence_threshold = 0.5 * (probability(2) + probability(3));
  EXPECT_EQ(Sample(options), all);
  EXPECT_THAT(Steps(), ElementsAre(ElementsAre(3, 4), ElementsAre(2),
                                   ElementsAre(5, 6, 7)));
  told_.clear();
  options.confidence_threshold = 0.999;
  EXPECT_EQ(Sample(options), all);
  EXPECT_EQ(Steps().size(), 6u);
}

TEST_F(UnmaskTest, TheLeftOfEquallySureIsFirst) {
  EXPECT_THAT(Sample(Options(3, 3, 3)), ElementsAre(1, 2, 0, 0, 0));
  EXPECT_THAT(Steps(),
              ElementsAre(ElementsAre(2), ElementsAre(3), ElementsAre(4)));
}

TEST_F(UnmaskTest, StepsWithoutTokensCostNoForward) {
  Sample(Options(3, 3, 9));
  EXPECT_EQ(model_.inputs.size(), 3u);
}

TEST_F(UnmaskTest, RandomRemaskingGoesByTheSeedAlone) {
  SureOfTheRight();
  model_.positions = 64;
  SamplerOptions options = Options(24, 24, 24);
  options.random_remasking = true;
  Sample(options);
  const auto first = Steps();
  told_.clear();
  Sample(options);
  EXPECT_EQ(Steps(), first);
  told_.clear();
  options.seed = 1;
  Sample(options);
  EXPECT_NE(Steps(), first);
}

// Position 2 holds token 0 for the text as it is, but token 1 if the prompt is
// masked.
TEST_F(UnmaskTest, GuidanceGoesAwayFromTheTextWithoutItsPrompt) {
  model_.logit = [](int64_t b, int64_t, int64_t v) {
    if (v == 0) return b == 0 ? 2.0f : 3.0f;
    if (v == 1) return b == 0 ? 1.5f : 0.0f;
    return 0.0f;
  };
  EXPECT_THAT(Sample(Options(1, 1, 1)), ElementsAre(1, 2, 0));
  EXPECT_EQ(model_.inputs[0].tokens.size(0), 1);
  SamplerOptions guided = Options(1, 1, 1);
  // 3 + 1.5 * (2 - 3) = 1.5 and 0 + 1.5 * 1.5 = 2.25.
  guided.cfg_scale = 0.5;
  EXPECT_THAT(Sample(guided), ElementsAre(1, 2, 1));
  const at::Tensor seen = model_.inputs[1].tokens;
  const int64_t* const tokens = seen.const_data_ptr<int64_t>();
  EXPECT_THAT(std::vector<int64_t>(tokens, tokens + seen.numel()),
              ElementsAre(1, 2, kMask, kMask, kMask, kMask));
}

TEST_F(UnmaskTest, TemperatureDrawsFromTheSoftmax) {
  constexpr int64_t kTokens = 20000;
  model_.positions = 1 << 15;
  model_.logit = [](int64_t, int64_t, int64_t v) {
    return v < 3 ? static_cast<float>(v) : -50.0f;
  };
  SamplerOptions options = Options(kTokens, kTokens, 1);
  options.temperature = 2.0;
  const Text text = Sample(options);
  double total = 0.0;
  for (int v = 0; v < 3; ++v) total += std::exp(v / 2.0);
  for (int v = 0; v < 3; ++v) {
    const double share =
        static_cast<double>(std::count(text.begin() + 2, text.end(), v)) /
        kTokens;
    // Four standard deviations.
    EXPECT_NEAR(share, std::exp(v / 2.0) / total, 4 * 0.5 / std::sqrt(kTokens));
  }
  EXPECT_EQ(Sample(options), text);
  options.seed = 7;
  EXPECT_NE(Sample(options), text);
}

TEST_F(UnmaskTest, TheMaskIsNeverChosenButCountsInProbabilities) {
  // Position 3 is surer of 4 than position 2, were it not for the mask.
  model_.logit = [](int64_t, int64_t t, int64_t v) {
    if (v == kMask) return t == 3 ? 9.0f : 1.0f;
    if (v == 4) return t == 3 ? 3.0f : 2.0f;
    return 0.0f;
  };
  EXPECT_THAT(Sample(Options(2, 2, 2)), ElementsAre(1, 2, 4, 4));
  EXPECT_THAT(Steps(), ElementsAre(ElementsAre(2), ElementsAre(3)));
}

// Steps that choose one token each of two blocks of 3.
TEST_F(UnmaskTest, ACacheLeavesOutWhatItHolds) {
  SureOfTheRight();
  const Text all = Sample(Options(6, 3, 6));
  const std::vector<std::vector<int64_t>> steps = Steps();
  using Positions = std::vector<Text>;
  const Text whole = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto seen = [&](Config::Cache cache, int64_t refresh) {
    model_.inputs.clear();
    told_.clear();
    SamplerOptions options = Options(6, 3, 6);
    options.cache = cache;
    if (refresh > 0) options.cache_refresh = refresh;
    EXPECT_EQ(Sample(options), all);
    EXPECT_EQ(Steps(), steps);
    Positions positions;
    for (const TokenInput& input : model_.inputs) {
      EXPECT_NE(input.cache, nullptr);
      const auto* const begin = input.positions.const_data_ptr<int64_t>();
      positions.emplace_back(begin, begin + input.positions.numel());
    }
    return positions;
  };
  const Text before = {2, 3, 4, 5, 6, 7}, last = {5, 6, 7};
  EXPECT_EQ(seen(Config::PREFIX, 0),
            Positions({whole, before, before, whole, last, last}));
  EXPECT_EQ(seen(Config::PREFIX, 2),
            Positions({whole, before, whole, whole, last, whole}));
  // The block comes last.
  const Text first = {2, 3, 4}, dual = {0, 1, 5, 6, 7, 2, 3, 4};
  EXPECT_EQ(seen(Config::DUAL, 0),
            Positions({dual, first, first, whole, last, last}));
  // Tokens stand where their positions say.
  EXPECT_EQ(model_.inputs[0].tokens[0][1].item<int64_t>(), 2);
  EXPECT_EQ(model_.inputs[2].tokens[0][2].item<int64_t>(), 4);
  model_.has_cache = false;
  SamplerOptions options = Options(6, 3, 6);
  options.cache = Config::PREFIX;
  const absl::Status none =
      Unmask(model_, {1, 2}, kMask, options, nullptr, runner_).status();
  EXPECT_EQ(FieldOf(none), "cache");
  EXPECT_THAT(std::string(none.message()), HasSubstr("it has none"));
}

TEST_F(UnmaskTest, ACacheThatIsAlwaysRefreshedIsNone) {
  SureOfTheRight();
  model_.has_cache = false;
  SamplerOptions options = Options(6, 3, 6);
  options.cache = Config::DUAL;
  options.cache_refresh = 1;
  Sample(options);
  for (const TokenInput& input : model_.inputs) {
    EXPECT_EQ(input.cache, nullptr);
    EXPECT_EQ(input.tokens.size(1), 8);
  }
}

TEST_F(UnmaskTest, TheTextEndsBehindTheFirstStop) {
  SureOfTheRight();
  SamplerOptions options = Options(8, 4, 8);
  options.stop_tokens = {3, 4};
  EXPECT_THAT(Sample(options), ElementsAre(1, 2, 2, 3));
  // The second block would have changed nothing.
  EXPECT_EQ(model_.inputs.size(), 4u);
  options.stop_tokens = {8};
  EXPECT_THAT(Sample(options), ElementsAre(1, 2, 2, 3, 4, 5, 6, 7, 8));
}

TEST_F(UnmaskTest, WhatStandsBehindTheEndIsNotWaitedFor) {
  // Position t holds token t, with more confidence further left.
  model_.logit = [](int64_t, int64_t t, int64_t v) {
    return v == t ? 9.0f - 0.1f * static_cast<float>(t) : 0.0f;
  };
  SamplerOptions options = Options(8, 8, 8);
  options.stop_tokens = {4};
  EXPECT_THAT(Sample(options), ElementsAre(1, 2, 2, 3, 4));
  EXPECT_EQ(model_.inputs.size(), 3u);
}

TEST_F(UnmaskTest, CanBeStoppedBetweenSteps) {
  SamplerOptions options = Options(8, 8, 8);
  int asked = 0;
  options.stop = [&asked] { return ++asked == 3; };
  const auto text = Unmask(model_, {1, 2}, kMask, options, nullptr, runner_);
  EXPECT_TRUE(absl::IsCancelled(text.status())) << text.status();
  EXPECT_EQ(model_.inputs.size(), 2u);
}

TEST_F(UnmaskTest, LogitsThatAreNotFiniteAreAnError) {
  model_.logit = [](int64_t, int64_t t, int64_t v) {
    return t == 3 && v == 5 ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
  };
  const auto text =
      Unmask(model_, {1, 2}, kMask, Options(2, 2, 2), nullptr, runner_);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("not finite"));
}

}  // namespace
}  // namespace capstan::masked_diffusion
