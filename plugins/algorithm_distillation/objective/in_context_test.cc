// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/objective/algorithm_distillation.h"
#include "plugins/algorithm_distillation/objective/fake_history_model.h"

namespace capstan::algorithm_distillation {
namespace {

constexpr int64_t kEpisodes = 3;
constexpr int kHorizon = 20;

int Count(const std::string& text, char c) {
  return static_cast<int>(std::count(text.begin(), text.end(), c));
}

// What follows the last START, or all of it.
std::string Region(const std::string& text) {
  const size_t start = text.rfind('S');
  return start == std::string::npos ? text : text.substr(start + 1);
}

class InContextTest : public ::testing::Test {
 protected:
  InContextTest() {
    options_.form.environment = std::make_shared<darkroom::Darkroom>(
        darkroom::Variant::kGoals, darkroom::Room());
    options_.episodes = kEpisodes;
    options_.key = 5;
  }
  void Plain(int64_t length) { options_.form.length = length; }
  void Compressed(int64_t region) {
    options_.form.compressed = true;
    options_.form.length = region;
  }

  static Trial Goal(int task, uint64_t number) { return {task, number}; }
  std::vector<double> Play(FakeHistoryModel* model,
                           const std::vector<Trial>& trials) {
    const auto returns = PlayInContext(*model, trials, options_, runner_);
    EXPECT_TRUE(returns.ok()) << returns.status();
    return *returns;
  }
  // Everything shown to the model in row `row`.
  static std::vector<std::string> Shown(const FakeHistoryModel& model,
                                        int64_t row) {
    std::vector<std::string> texts;
    for (const auto& rows : model.shown) {
      if (!rows[row].empty()) texts.push_back(rows[row]);
    }
    return texts;
  }

  TrialOptions options_;
  PlainRunner runner_;
};

TEST_F(InContextTest, PlainShowsTheNewestTransitions) {
  Plain(8);
  FakeHistoryModel model(false);
  Play(&model, {Goal(40, 0)});
  const std::vector<std::string> shown = Shown(model, 0);
  ASSERT_EQ(shown.size(), kEpisodes * kHorizon);
  EXPECT_EQ(shown[0], "Q44");
  for (size_t i = 1; i < shown.size(); ++i) {
    ASSERT_EQ(Count(shown[i], 'T'), std::min<size_t>(i, 7));
    // The last one leads to the queried state, and the others are those of the
    // previous step.
    const std::string query = shown[i].substr(shown[i].size() - 2);
    ASSERT_EQ(shown[i].substr(shown[i].size() - 5, 2), query);
    const std::string before = shown[i].substr(0, shown[i].rfind('T'));
    const std::string past = shown[i - 1].substr(0, shown[i - 1].find('Q'));
    ASSERT_EQ(past.substr(past.size() - before.size()), before);
  }
  EXPECT_EQ(shown[kHorizon].substr(shown[kHorizon].size() - 2), "44");
}

TEST_F(InContextTest, ReturnsAreTheRewardsThatAreShown) {
  Plain(kHorizon + 1);
  FakeHistoryModel model(false);
  // The start is the goal: staying there is worth a step's reward.
  const std::vector<double> returns = Play(&model, {Goal(40, 3)});
  for (int64_t episode = 0; episode + 1 < kEpisodes; ++episode) {
    const std::string text = Shown(model, 0)[(episode + 1) * kHorizon];
    int rewards = 0;
    for (size_t t = text.find('T'); t != std::string::npos;
         t = text.find('T', t + 1)) {
      rewards += text[t + 4] == '1';
    }
    EXPECT_GT(rewards, 0);
    EXPECT_EQ(returns[episode], rewards);
  }
}

TEST_F(InContextTest, AnEpisodesEndIsShownAsTrainingHasIt) {
  Plain(2);
  for (const bool terminal : {false, true}) {
    options_.form.terminal_states = terminal;
    FakeHistoryModel model(false);
    Play(&model, {Goal(0, 0), Goal(1, 1)});
    int elsewhere = 0;
    for (int row = 0; row < 2; ++row) {
      for (int64_t episode = 1; episode < kEpisodes; ++episode) {
        // "T......Q44"
        const std::string text = Shown(model, row)[episode * kHorizon];
        elsewhere += text.substr(5, 2) != "44";
      }
    }
    EXPECT_EQ(elsewhere > 0, terminal);
  }
}

TEST_F(InContextTest, AFullRegionBecomesTheOneBefore) {
  Compressed(8);
  FakeHistoryModel model(true);
  Play(&model, {Goal(3, 0)});
  const std::vector<std::string> shown = Shown(model, 0);
  ASSERT_EQ(shown.size(), kEpisodes * kHorizon);
  EXPECT_EQ(shown[0], "SQ44");
  for (size_t i = 8; i < shown.size(); ++i) {
    ASSERT_EQ(Count(Region(shown[i]), 'T'), i % 8);
    ASSERT_EQ(Count(shown[i], 'T'), 8 + i % 8);
    ASSERT_EQ(Count(shown[i], 'S'), 2);
    ASSERT_EQ(Count(shown[i], 'E'), 1);
  }
}

// The model ends regions after four steps if it is queried in a cell of the
// upper rows: at different times in the two histories.
bool EndsAbove(const std::string& text) {
  return Count(Region(text), 'T') >= 4 && text[text.size() - 2] < '4';
}

TEST_F(InContextTest, ARegionThatEndsIsNobodyElsesMatter) {
  Compressed(16);
  for (const bool last_action : {true, false}) {
    options_.form.last_action = last_action;
    FakeHistoryModel together(true);
    together.ends = EndsAbove;
    const std::vector<Trial> trials = {Goal(3, 7), Goal(60, 8), Goal(12, 9)};
    const std::vector<double> returns = Play(&together, trials);
    std::vector<int> regions;
    for (size_t i = 0; i < trials.size(); ++i) {
      FakeHistoryModel alone(true);
      alone.ends = EndsAbove;
      const std::vector<double> own = Play(&alone, {trials[i]});
      EXPECT_EQ(own,
                std::vector<double>(returns.begin() + i * kEpisodes,
                                    returns.begin() + (i + 1) * kEpisodes));
      const std::vector<std::string> shown = Shown(together, i);
      EXPECT_EQ(Shown(alone, 0), shown);
      regions.push_back(0);
      for (const std::string& text : shown) {
        regions.back() += Region(text).find('T') == std::string::npos;
      }
    }
    EXPECT_NE(regions[0], regions[1]);
    EXPECT_GT(regions[0], 2);
  }
}

// The step that ends a region is the region's last, as in training.
TEST_F(InContextTest, TheStepAtTheEndIsDone) {
  Compressed(16);
  FakeHistoryModel model(true);
  model.ends = [](const std::string& text) {
    return Count(Region(text), 'T') == 4;
  };
  Play(&model, {Goal(3, 0)});
  const std::vector<std::string> shown = Shown(model, 0);
  ASSERT_EQ(shown.size(), kEpisodes * kHorizon);
  EXPECT_EQ(Count(shown[5], 'T'), 5);
  EXPECT_EQ(Region(shown[5]), "Q" + shown[5].substr(shown[5].size() - 2));
  EXPECT_EQ(Count(shown[5], 'E'), 1);
}

// As in the original: the region ends before the step, and the model is queried
// again.
TEST_F(InContextTest, OrTheModelIsAskedAgain) {
  Compressed(16);
  options_.form.last_action = false;
  FakeHistoryModel model(true);
  model.ends = [](const std::string& text) {
    return Count(Region(text), 'T') == 4;
  };
  Play(&model, {Goal(3, 0)});
  EXPECT_EQ(model.calls, 2 * kEpisodes * kHorizon);
  const std::vector<std::string> shown = Shown(model, 0);
  EXPECT_EQ(shown.size(), kEpisodes * kHorizon * 5 / 4 - 1);
  EXPECT_EQ(Count(shown[4], 'T'), 4);
  EXPECT_EQ(Count(shown[5], 'T'), 4);
  EXPECT_EQ(Region(shown[5]), shown[4].substr(shown[4].size() - 3));
  EXPECT_EQ(Count(Region(shown[6]), 'T'), 1);
}

TEST_F(InContextTest, ModelsAreCalledEquallyOften) {
  for (const bool compressed : {false, true}) {
    options_.form.compressed = compressed;
    options_.form.length = 16;
    for (const bool finite : {true, false}) {
      FakeHistoryModel model(compressed);
      model.finite = finite;
      model.ends = EndsAbove;
      const auto returns =
          PlayInContext(model, {Goal(3, 7), Goal(8, 0)}, options_, runner_);
      EXPECT_EQ(returns.ok(), finite);
      EXPECT_EQ(model.calls, kEpisodes * kHorizon);
    }
  }
}

TEST_F(InContextTest, CanBeStoppedBetweenSteps) {
  Plain(8);
  FakeHistoryModel model(false);
  int asked = 0;
  options_.stop = [&asked] { return ++asked == 6; };
  const auto returns = PlayInContext(model, {Goal(3, 7)}, options_, runner_);
  EXPECT_TRUE(absl::IsCancelled(returns.status())) << returns.status();
  EXPECT_EQ(model.calls, 5);
}

TEST_F(InContextTest, NumberAndKeyDecideAlone) {
  Plain(8);
  const auto played = [&](uint64_t number) {
    FakeHistoryModel model(false);
    Play(&model, {Goal(3, number)});
    return Shown(model, 0);
  };
  const std::vector<std::string> first = played(1);
  EXPECT_EQ(played(1), first);
  EXPECT_NE(played(2), first);
  options_.key = 6;
  EXPECT_NE(played(1), first);
}

}  // namespace
}  // namespace capstan::algorithm_distillation
