// SPDX-License-Identifier: Apache-2.0
//
// Texts that are made together are those that are made alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "plugins/objective/causal_lm/causal_lm.h"
#include "plugins/sdk/prefix_model_for_test.h"

namespace capstan::causal_lm {
namespace {

using ::testing::SizeIs;

const std::vector<BatchPrompt> kPrompts = {{{1, 2, 3}, 7, {}},
                                           {{4}, 8, {}},
                                           {{5, 6, 7, 8, 9}, 9, {0}},
                                           {{2, 2}, 7, {}}};

class BatchTest : public ::testing::Test {
 protected:
  std::vector<int64_t> Alone(const BatchPrompt& prompt, SampleOptions options) {
    options.seed = prompt.seed;
    options.stop_tokens = prompt.stop_tokens;
    return *objective_->Sample(model_, prompt.ids, options, runner_);
  }
  std::vector<std::vector<int64_t>> Together(
      const SampleOptions& options, const Objective::Ended& ended = nullptr) {
    const auto texts =
        objective_->SampleBatch(model_, kPrompts, options, ended, runner_);
    EXPECT_TRUE(texts.ok()) << texts.status();
    return texts.ok() ? *texts : std::vector<std::vector<int64_t>>();
  }

  const std::unique_ptr<CausalLm> objective_ = *CausalLm::Create(Config());
  PrefixModel model_{12, 24};
  PlainRunner runner_;
};

TEST_F(BatchTest, EqualsEachAlone) {
  model_.eos = 5;
  for (const bool greedy : {true, false}) {
    SampleOptions options;
    options.greedy = greedy;
    // Beyond the model's positions, too.
    for (const int64_t tokens : {1, 6, 18, 40}) {
      options.max_new_tokens = tokens;
      const auto texts = Together(options);
      ASSERT_THAT(texts, SizeIs(kPrompts.size()));
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(texts[i], Alone(kPrompts[i], options)) << i << " " << tokens;
      }
    }
  }
}

TEST_F(BatchTest, AKeptContextChangesNoText) {
  SampleOptions options;
  options.greedy = true;
  options.max_new_tokens = 4;
  const std::unique_ptr<CausalLm> kept = *CausalLm::Create(Config());
  kept->KeepContext(true);
  // As it was, a longer one, another end, a shorter one, another text, and one
  // that runs out of positions.
  for (const std::vector<int64_t>& ids :
       std::vector<std::vector<int64_t>>{{1, 2, 3},
                                         {1, 2, 3},
                                         {1, 2, 3, 4, 5, 6, 7, 8},
                                         {1, 2, 3, 4, 9},
                                         {1, 2},
                                         {7},
                                         std::vector<int64_t>(22, 3),
                                         {3, 3, 3}}) {
    EXPECT_EQ(*kept->Sample(model_, ids, options, runner_),
              Alone({ids, 0, {}}, options))
        << ids.size();
  }
}

TEST_F(BatchTest, EachEndTokenEndsAText) {
  SampleOptions options;
  options.max_new_tokens = 18;
  options.stop_at_eos = false;
  const BatchPrompt& prompt = kPrompts[0];
  const std::vector<int64_t> whole = Alone(prompt, options);
  model_.other_ends = {11, whole[prompt.ids.size() + 2]};
  options.stop_at_eos = true;
  const std::vector<int64_t> text = Alone(prompt, options);
  EXPECT_LE(text.size(), prompt.ids.size() + 3);
  EXPECT_TRUE(std::equal(text.begin(), text.end(), whole.begin()));
  EXPECT_EQ(Together(options)[0], text);
}

TEST_F(BatchTest, TextsEndWhereTheyAreTold) {
  SampleOptions options;
  options.stop_at_eos = false;
  options.max_new_tokens = 10;
  const auto texts =
      Together(options, [](size_t row, absl::Span<const int64_t> text) {
        return text.size() - kPrompts[row].ids.size() == row + 1;
      });
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(texts[i].size(), kPrompts[i].ids.size() + i + 1);
    const std::vector<int64_t> whole = Alone(kPrompts[i], options);
    EXPECT_TRUE(std::equal(texts[i].begin(), texts[i].end(), whole.begin()));
  }
}

TEST_F(BatchTest, SaysWhatItCannotDo) {
  SampleOptions options;
  options.max_new_tokens = 5;
  const auto status = [&] {
    return objective_->SampleBatch(model_, kPrompts, options, nullptr, runner_)
        .status();
  };
  model_.batched = false;
  EXPECT_TRUE(absl::IsUnimplemented(status()));
  model_.batched = true;
  options.stop = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(status()));
  const std::vector<BatchPrompt> none;
  EXPECT_TRUE(
      objective_->SampleBatch(model_, none, {}, nullptr, runner_)->empty());
}

}  // namespace
}  // namespace capstan::causal_lm
