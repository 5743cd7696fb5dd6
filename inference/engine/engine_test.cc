// SPDX-License-Identifier: Apache-2.0
#include "inference/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plugins/objective/causal_lm/causal_lm.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/prefix_model_for_test.h"

namespace capstan {
namespace {

using ::testing::SizeIs;

// What a client has of a text.
struct Got {
  std::vector<int64_t> tokens;
  std::vector<AnswerToken> prompt, all;
  absl::Status status;
  bool stopped = false;
};

std::vector<Got> All(Answers* answers, size_t count) {
  std::vector<Got> got(count);
  while (answers->left() > 0) {
    const auto piece = answers->Next(std::chrono::seconds(1));
    if (!piece.has_value()) continue;
    Got& of = got[piece->request];
    for (const AnswerToken& token : piece->tokens) {
      of.tokens.push_back(token.token);
      of.all.push_back(token);
    }
    of.prompt.insert(of.prompt.end(), piece->prompt.begin(),
                     piece->prompt.end());
    of.status = piece->status;
    of.stopped = piece->stopped;
  }
  return got;
}

class EngineTest : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> NewEngine(const EngineOptions& options = {}) {
    return std::make_unique<Engine>(
        std::vector<EngineModel>{{&model_, objective_.get(), tokenizer_.get()}},
        options);
  }
  EngineRequest Request(std::vector<int64_t> prompt, int64_t tokens) const {
    EngineRequest request;
    request.prompt = std::move(prompt);
    request.sample.max_new_tokens = tokens;
    return request;
  }
  // The new tokens of Objective::Sample.
  std::vector<int64_t> Alone(const EngineRequest& request) {
    std::vector<int64_t> text =
        *objective_->Sample(model_, request.prompt, request.sample, runner_);
    text.erase(text.begin(),
               text.begin() + static_cast<int64_t>(request.prompt.size()));
    return text;
  }

  const std::unique_ptr<causal_lm::CausalLm> objective_ =
      *causal_lm::CausalLm::Create(causal_lm::Config());
  const std::unique_ptr<Tokenizer> tokenizer_ = NewByteTokenizer();
  PrefixModel model_{200, 1000000};
  PlainRunner runner_;
};

TEST_F(EngineTest, ManyClientsGetWhatEachAloneGets) {
  EngineOptions options;
  options.rows = 5;
  const auto engine = NewEngine(options);
  EXPECT_TRUE(engine->batches(0));
  std::vector<std::vector<EngineRequest>> requests(8);
  std::vector<std::vector<Got>> got(requests.size());
  std::vector<std::thread> clients;
  for (size_t c = 0; c < requests.size(); ++c) {
    for (size_t i = 0; i < 4; ++i) {
      requests[c].push_back(Request(
          {static_cast<int64_t>(c), static_cast<int64_t>(i)}, 3 + 7 * (i % 3)));
      requests[c].back().sample.seed = c * 10 + i;
    }
    clients.emplace_back([&, c] {
      const auto answers = engine->Submit(requests[c]);
      ASSERT_TRUE(answers.ok()) << answers.status();
      got[c] = All(answers->get(), requests[c].size());
    });
  }
  for (std::thread& client : clients) client.join();
  for (size_t c = 0; c < requests.size(); ++c) {
    for (size_t i = 0; i < requests[c].size(); ++i) {
      EXPECT_TRUE(got[c][i].status.ok()) << got[c][i].status;
      EXPECT_EQ(got[c][i].tokens, Alone(requests[c][i])) << c << " " << i;
      EXPECT_FALSE(got[c][i].stopped);
    }
  }
  const EngineLoad load = engine->load();
  EXPECT_EQ(load.answered, 32);
  EXPECT_EQ(load.writing, 0);
  EXPECT_EQ(load.prompt_tokens, 64);
}

TEST_F(EngineTest, SaysHowLikelyTokensAre) {
  const auto engine = NewEngine();
  EngineRequest request = Request({1, 2, 3, 4}, 3);
  request.sample.greedy = true;
  request.logprobs = 5;
  request.prompt_logprobs = true;
  const auto answers = engine->Submit({request});
  ASSERT_TRUE(answers.ok());
  const Got got = All(answers->get(), 1)[0];
  ASSERT_THAT(got.prompt, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.prompt[i].token, request.prompt[i + 1]);
  }
  ASSERT_THAT(got.all, SizeIs(3));
  for (const AnswerToken& token : got.all) {
    ASSERT_THAT(token.likeliest, SizeIs(5));
    EXPECT_EQ(token.likeliest[0].first, token.token);
    EXPECT_EQ(token.likeliest[0].second, token.logprob);
    EXPECT_LT(token.logprob, 0.0f);
    EXPECT_GE(token.likeliest[0].second, token.likeliest[4].second);
  }
}

TEST_F(EngineTest, StopStringsEndATextAmongOthers) {
  const auto engine = NewEngine();
  EngineRequest request = Request({65, 66}, 40);
  const std::vector<int64_t> whole = Alone(request);
  const std::string text = tokenizer_->Decode(whole);
  request.stops = StopStrings({text.substr(10, 3)});
  const auto answers = engine->Submit({request, Request({65, 66}, 40)});
  ASSERT_TRUE(answers.ok());
  const std::vector<Got> got = All(answers->get(), 2);
  EXPECT_TRUE(got[0].stopped);
  EXPECT_LE(got[0].tokens.size(), 13u);
  EXPECT_EQ(got[1].tokens, whole);
}

TEST_F(EngineTest, AClientThatLeavesMakesRoom) {
  EngineOptions options;
  options.rows = 1;
  const auto engine = NewEngine(options);
  // Longer than anyone waits.
  auto first = engine->Submit({Request({1}, 900000)});
  ASSERT_TRUE(first.ok());
  while (!(*first)->Next(std::chrono::seconds(1)).has_value()) {
  }
  const EngineRequest short_one = Request({2}, 5);
  const auto second = engine->Submit({short_one});
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(engine->load().writing, 1);
  *first = nullptr;
  EXPECT_EQ(All(second->get(), 1)[0].tokens, Alone(short_one));
  // The engine's end doesn't wait for a text's.
  const auto third = engine->Submit({Request({1}, 900000)});
  EXPECT_TRUE(third.ok());
}

TEST_F(EngineTest, RefusesWhatIsTooMuch) {
  EngineOptions options;
  options.waiting = 3;
  options.cache_bytes = 8 * 1000;
  const auto engine = NewEngine(options);
  const std::vector<EngineRequest> four(4, Request({1}, 2));
  EXPECT_TRUE(absl::IsInvalidArgument(engine->Submit(four).status()));
  const absl::Status longer = engine->Submit({Request({1}, 1000)}).status();
  EXPECT_TRUE(absl::IsOutOfRange(longer)) << longer;
  // One after the other, where the cache has room for one alone.
  const std::vector<EngineRequest> three(3, Request({1}, 900));
  const auto answers = engine->Submit(three);
  ASSERT_TRUE(answers.ok()) << answers.status();
  for (const Got& got : All(answers->get(), 3)) {
    EXPECT_THAT(got.tokens, SizeIs(900));
  }
  // Of the model's vocabulary.
  const auto wrong = engine->Submit({Request({1000}, 2)});
  ASSERT_TRUE(wrong.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(All(wrong->get(), 1)[0].status));
}

TEST_F(EngineTest, WhoLeavesWaitsNoLonger) {
  EngineOptions options;
  options.rows = 2;
  options.waiting = 8;
  const auto engine = NewEngine(options);
  // Six texts that nobody could wait for.
  const auto many =
      engine->Submit(std::vector<EngineRequest>(6, Request({1}, 900000)));
  ASSERT_TRUE(many.ok());
  while (engine->load().writing < options.rows) std::this_thread::yield();
  auto gone = engine->Submit({Request({2}, 5)});
  ASSERT_TRUE(gone.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(
      engine->Submit(std::vector<EngineRequest>(4, Request({3}, 5))).status()));
  EXPECT_EQ(engine->load().waiting, 5);
  *gone = nullptr;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (engine->load().waiting == 5 &&
         std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(engine->load().waiting, 4);
}

TEST_F(EngineTest, ARequestOfManyTextsLetsOthersBetween) {
  EngineOptions options;
  options.rows = 1;
  const auto engine = NewEngine(options);
  const auto many =
      engine->Submit(std::vector<EngineRequest>(200, Request({1}, 200)));
  ASSERT_TRUE(many.ok());
  const auto one = engine->Submit({Request({2}, 5)});
  ASSERT_TRUE(one.ok());
  EXPECT_TRUE(All(one->get(), 1)[0].status.ok());
  EXPECT_GT(engine->load().waiting, 100);
}

TEST_F(EngineTest, ModelsThatCannotBatchWriteOneTextAfterTheOther) {
  model_.batched = false;
  const auto engine = NewEngine();
  EXPECT_FALSE(engine->batches(0));
  const std::vector<EngineRequest> requests = {Request({1, 2}, 6),
                                               Request({3}, 9)};
  const auto answers = engine->Submit(requests);
  ASSERT_TRUE(answers.ok());
  const std::vector<Got> got = All(answers->get(), 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(got[i].tokens, Alone(requests[i])) << i;
  }
  EngineRequest logprobs = requests[0];
  logprobs.logprobs = 0;
  const auto refused = engine->Submit({logprobs});
  ASSERT_TRUE(refused.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(All(refused->get(), 1)[0].status));
}

}  // namespace
}  // namespace capstan
