// SPDX-License-Identifier: Apache-2.0
//
// Texts that begin and end beside others are those that are made alone.
#include "plugins/sdk/text_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "plugins/objective/causal_lm/causal_lm.h"
#include "plugins/sdk/prefix_model_for_test.h"

namespace capstan::causal_lm {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// What became of a text.
struct Made {
  std::vector<int64_t> text;  // prompt included
  absl::Status status = absl::UnknownError("it isn't done");
  std::vector<size_t> places;  // of which there were logits
};

class TextBatchTest : public ::testing::Test {
 protected:
  std::unique_ptr<TextBatch> NewBatch(bool keep_context = false) {
    auto batch = objective_->NewTextBatch(model_, keep_context);
    EXPECT_TRUE(batch.ok()) << batch.status();
    return *std::move(batch);
  }
  // Adds a text that comes to `made`.
  absl::Status Add(TextBatch* batch, std::vector<int64_t> prompt,
                   SampleOptions options, Made* made,
                   bool prompt_logits = false) {
    BatchedText text;
    made->text = prompt;
    text.prompt = std::move(prompt);
    options.on_token = [made](int64_t token) { made->text.push_back(token); };
    text.options = std::move(options);
    text.on_logits = [made](size_t place, absl::Span<const float>) {
      made->places.push_back(place);
    };
    text.prompt_logits = prompt_logits;
    text.done = [made](const absl::Status& status) { made->status = status; };
    return batch->Add(std::move(text));
  }
  std::vector<int64_t> Alone(const std::vector<int64_t>& prompt,
                             const SampleOptions& options) {
    return *objective_->Sample(model_, prompt, options, runner_);
  }

  const std::unique_ptr<CausalLm> objective_ = *CausalLm::Create(Config());
  PrefixModel model_{12, 900};
  PlainRunner runner_;
};

std::vector<int64_t> Prompt(int64_t length, int64_t seed) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < length; ++i) ids.push_back((seed + i * i) % 12);
  return ids;
}

// Each with settings and a length of its own, the next one two steps later; a
// long prompt among them.
TEST_F(TextBatchTest, EqualsEachAlone) {
  model_.eos = 5;
  for (const bool keep_context : {false, true}) {
    const auto batch = NewBatch(keep_context);
    std::vector<Made> made(12);
    std::vector<SampleOptions> options(made.size());
    std::vector<std::vector<int64_t>> prompts;
    for (size_t i = 0; i < made.size(); ++i) {
      prompts.push_back(Prompt(i == 3 ? 700 : 1 + 3 * (i % 5), i));
      options[i].greedy = i % 3 == 0;
      options[i].temperature = options[i].greedy
                                   ? absl::optional<double>()
                                   : 0.5 + 0.1 * static_cast<double>(i);
      options[i].stop_at_eos = i % 2 == 0;
      options[i].max_new_tokens = 1 + 5 * (i % 4);
      options[i].seed = i;
      ASSERT_TRUE(Add(batch.get(), prompts[i], options[i], &made[i]).ok());
      for (int step = 0; step < 2; ++step) {
        ASSERT_TRUE(batch->Step(runner_).ok());
      }
    }
    for (int step = 0; step < 100 && batch->size() > 0; ++step) {
      ASSERT_TRUE(batch->Step(runner_).ok());
    }
    EXPECT_EQ(batch->size(), 0);
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_TRUE(made[i].status.ok()) << made[i].status;
      EXPECT_EQ(made[i].text, Alone(prompts[i], options[i])) << i;
    }
  }
}

TEST_F(TextBatchTest, ALongPromptLetsOthersGoOn) {
  const auto batch = NewBatch();
  SampleOptions options;
  options.max_new_tokens = 20;
  Made one, another;
  ASSERT_TRUE(Add(batch.get(), {1}, options, &one).ok());
  ASSERT_TRUE(batch->Step(runner_).ok());
  ASSERT_TRUE(Add(batch.get(), Prompt(800, 3), options, &another).ok());
  for (int step = 0; step < 3; ++step) {
    const size_t before = one.text.size();
    ASSERT_TRUE(batch->Step(runner_).ok());
    EXPECT_EQ(one.text.size(), before + 1);
    EXPECT_THAT(another.text, SizeIs(800));
  }
  ASSERT_TRUE(batch->Step(runner_).ok());
  EXPECT_GT(another.text.size(), 800u);
}

TEST_F(TextBatchTest, GivesLogitsOfNewTokensAndOfThePrompt) {
  const auto batch = NewBatch();
  SampleOptions options;
  options.max_new_tokens = 2;
  Made one, another;
  ASSERT_TRUE(Add(batch.get(), {1, 2, 3}, options, &one).ok());
  ASSERT_TRUE(Add(batch.get(), {1, 2, 3}, options, &another, true).ok());
  while (batch->size() > 0) ASSERT_TRUE(batch->Step(runner_).ok());
  EXPECT_THAT(one.places, ElementsAre(3, 4));
  EXPECT_THAT(another.places, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(one.text, another.text);
}

TEST_F(TextBatchTest, ReadsAPromptThatSeveralHaveOnce) {
  for (const int64_t before : {0, 1, 2}) {
    const auto batch = NewBatch();
    SampleOptions options;
    options.max_new_tokens = 10;
    Made between;
    std::vector<Made> others(before), made(4);
    for (Made& other : others) {
      ASSERT_TRUE(Add(batch.get(), {7, 8}, options, &other).ok());
      ASSERT_TRUE(batch->Step(runner_).ok());
    }
    const std::vector<int64_t> prompt = Prompt(300, 2);
    model_.tokens_read = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      options.seed = i;
      ASSERT_TRUE(Add(batch.get(), prompt, options, &made[i]).ok());
      // Another one between them.
      if (i == 1) {
        ASSERT_TRUE(Add(batch.get(), {1, 2}, options, &between).ok());
      }
    }
    while (batch->size() > 0) ASSERT_TRUE(batch->Step(runner_).ok());
    EXPECT_LT(model_.tokens_read, 2 * 300);
    for (size_t i = 0; i < made.size(); ++i) {
      options.seed = i;
      EXPECT_EQ(made[i].text, Alone(prompt, options)) << before << " " << i;
    }
  }
}

// The last new token is never read.
TEST_F(TextBatchTest, APromptMayHaveAllPositions) {
  const auto batch = NewBatch();
  SampleOptions options;
  options.max_new_tokens = 1;
  Made whole, longer;
  ASSERT_TRUE(Add(batch.get(), Prompt(900, 1), options, &whole, true).ok());
  EXPECT_FALSE(Add(batch.get(), Prompt(901, 1), options, &longer).ok());
  options.max_new_tokens = 2;
  EXPECT_TRUE(
      absl::IsOutOfRange(Add(batch.get(), Prompt(900, 1), options, &longer)));
  while (batch->size() > 0) ASSERT_TRUE(batch->Step(runner_).ok());
  EXPECT_TRUE(whole.status.ok()) << whole.status;
  EXPECT_THAT(whole.places, SizeIs(900));
  options.max_new_tokens = 1;
  EXPECT_EQ(whole.text, Alone(Prompt(900, 1), options));
}

TEST_F(TextBatchTest, TextsAreStopped) {
  const auto batch = NewBatch();
  SampleOptions options;
  options.max_new_tokens = 50;
  options.stop_at_eos = false;
  std::vector<Made> made(3);
  bool stop = false;
  options.stop = [&stop] { return stop; };
  ASSERT_TRUE(Add(batch.get(), {4}, options, &made[0]).ok());
  options.stop = nullptr;
  options.ended = [](absl::Span<const int64_t> text) {
    return text.size() == 9;
  };
  ASSERT_TRUE(Add(batch.get(), {5, 6}, options, &made[1]).ok());
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(batch->Step(runner_).ok());
  }
  stop = true;
  options.stop = [] { return true; };
  ASSERT_TRUE(Add(batch.get(), {7}, options, &made[2]).ok());
  while (batch->size() > 0) ASSERT_TRUE(batch->Step(runner_).ok());
  EXPECT_TRUE(absl::IsCancelled(made[0].status));
  EXPECT_LT(made[0].text.size(), 10u);
  EXPECT_TRUE(made[1].status.ok());
  EXPECT_THAT(made[1].text, SizeIs(9));
  EXPECT_TRUE(absl::IsCancelled(made[2].status));
  EXPECT_THAT(made[2].text, SizeIs(1));
}

TEST_F(TextBatchTest, ATextThatDoesNotFitEndsAlone) {
  const auto batch = NewBatch();
  SampleOptions options;
  options.max_new_tokens = 20;
  std::vector<Made> made(3);
  const std::vector<std::vector<int64_t>> prompts = {
      Prompt(4, 1), Prompt(300, 2), Prompt(5, 3)};
  model_.most_cached = 100;
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(Add(batch.get(), prompts[i], options, &made[i]).ok());
  }
  while (batch->size() > 0) ASSERT_TRUE(batch->Step(runner_).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(made[1].status)) << made[1].status;
  EXPECT_EQ(made[1].status.message().find("--"), absl::string_view::npos);
  for (const size_t i : {0, 2}) {
    EXPECT_TRUE(made[i].status.ok()) << made[i].status;
    EXPECT_EQ(made[i].text, Alone(prompts[i], options));
  }
}

TEST_F(TextBatchTest, SaysWhatItCannotDo) {
  const auto batch = NewBatch();
  SampleOptions options;
  options.max_new_tokens = 5;
  Made made;
  EXPECT_TRUE(absl::IsInvalidArgument(Add(batch.get(), {}, options, &made)));
  EXPECT_TRUE(absl::IsInvalidArgument(Add(batch.get(), {12}, options, &made)));
  EXPECT_TRUE(
      absl::IsOutOfRange(Add(batch.get(), Prompt(898, 0), options, &made)));
  options.top_p = 2.0;
  EXPECT_TRUE(absl::IsInvalidArgument(Add(batch.get(), {1}, options, &made)));
  EXPECT_EQ(batch->size(), 0);
  model_.batched = false;
  EXPECT_TRUE(
      absl::IsUnimplemented(objective_->NewTextBatch(model_, false).status()));
}

}  // namespace
}  // namespace capstan::causal_lm
