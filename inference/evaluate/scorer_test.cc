// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/scorer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "absl/strings/strip.h"
#include "inference/evaluate/run_task.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/prefix_model_for_test.h"

namespace capstan::evaluate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<EncodedRequest> kRequests = {
    {{1, 2, 3}, {{4, 5}, {6}, {}}},
    {{7}, {{1}, {2, 3, 4, 5, 6}}},
    {{2, 2, 9, 8, 1, 0}, {{3}}},
};

TEST(ScorerTest, SideBySideAsAlone) {
  PrefixModel model(11, 16);
  PlainRunner runner;
  const auto together = ScoreContinuations(&model, kRequests, runner);
  ASSERT_TRUE(together.ok()) << together.status();
  model.batched = false;
  const auto alone = ScoreContinuations(&model, kRequests, runner);
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_EQ(together->size(), 3u);
  for (size_t i = 0; i < kRequests.size(); ++i) {
    ASSERT_EQ((*together)[i].size(), kRequests[i].continuations.size());
    for (size_t j = 0; j < (*together)[i].size(); ++j) {
      EXPECT_NEAR((*together)[i][j].log_likelihood,
                  (*alone)[i][j].log_likelihood, 1e-6);
      EXPECT_EQ((*together)[i][j].greedy, (*alone)[i][j].greedy);
    }
  }
  EXPECT_LT((*together)[0][0].log_likelihood, 0.0);
  EXPECT_EQ((*together)[0][2].log_likelihood, 0.0);
}

// Room for each alone, not for the longest context and the longest answer.
TEST(ScorerTest, WhatDoesNotFitTogetherIsSplit) {
  PrefixModel model(11, 7);
  PlainRunner runner;
  const auto scores = ScoreContinuations(&model, kRequests, runner);
  ASSERT_TRUE(scores.ok()) << scores.status();
  PrefixModel longer(11, 16);
  const auto wanted = ScoreContinuations(&longer, kRequests, runner);
  EXPECT_NEAR((*scores)[1][1].log_likelihood, (*wanted)[1][1].log_likelihood,
              1e-6);
}

TEST(ScorerTest, GreedyIsTheLikeliestOfEach) {
  PrefixModel model(11, 16);
  PlainRunner runner;
  int greedy = 0;
  for (int64_t token = 0; token < 11; ++token) {
    const std::vector<EncodedRequest> one = {{{1, 2}, {{token}}}};
    greedy += (*ScoreContinuations(&model, one, runner))[0][0].greedy ? 1 : 0;
  }
  EXPECT_EQ(greedy, 1);
}

TEST(EncodeRequestTest, SpacesMoveToTheContinuation) {
  const std::unique_ptr<Tokenizer> bytes = NewByteTokenizer();
  const auto request = EncodeRequest(*bytes, "ab  ", {"c", " d"}, 100);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->context, ElementsAre('a', 'b'));
  EXPECT_THAT(
      request->continuations,
      ElementsAre(ElementsAre(' ', ' ', 'c'), ElementsAre(' ', ' ', ' ', 'd')));
  // A text that is to be continued keeps them.
  EXPECT_THAT(EncodeRequest(*bytes, "ab ", {}, 100)->context,
              ElementsAre('a', 'b', ' '));
}

// Gemma's or Llama 3's.
class BeginningTokenizer final : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 258; }
  std::vector<int64_t> Encode(absl::string_view text) const override {
    if (absl::ConsumePrefix(&text, "<bos>")) {
      std::vector<int64_t> ids = bytes_->Encode(text);
      ids.insert(ids.begin(), 256);
      return ids;
    }
    return bytes_->Encode(text);
  }
  Encoding EncodeWithPlaces(absl::string_view text) const override {
    return bytes_->EncodeWithPlaces(text);
  }
  void AddEnds(std::vector<int64_t>* ids) const override {
    ids->insert(ids->begin(), 256);
    ids->push_back(257);
  }
  std::string Decode(absl::Span<const int64_t> ids) const override {
    return ids.size() == 1 && ids[0] == 256 ? "<bos>" : bytes_->Decode(ids);
  }
  absl::Status Save(const std::string&) const override {
    return absl::OkStatus();
  }
  SpecialIds special_ids() const override {
    SpecialIds ids;
    ids.bos = 256;
    return ids;
  }

 private:
  const std::unique_ptr<Tokenizer> bytes_ = NewByteTokenizer();
};

TEST(EncodeRequestTest, ContextsBeginAsTheTokenizerSays) {
  const BeginningTokenizer tokenizer;
  const auto request = EncodeRequest(tokenizer, "a", {" b"}, 100);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->context, ElementsAre(256, 'a'));
  EXPECT_THAT(request->continuations, ElementsAre(ElementsAre(' ', 'b')));
  // What a chat's template has written already.
  EXPECT_THAT(EncodeRequest(tokenizer, "<bos>a", {}, 100)->context,
              ElementsAre(256, 'a'));
}

// Of lm_eval's get_rolling_token_windows and make_disjoint_window.
TEST(EncodeWindowsTest, EachTokenIsPredictedOnce) {
  const BeginningTokenizer tokenizer;
  const auto windows = EncodeWindows(tokenizer, "abcdef", 3);
  ASSERT_TRUE(windows.ok()) << windows.status();
  ASSERT_EQ(windows->size(), 3u);
  EXPECT_THAT((*windows)[0].context, ElementsAre(256));
  EXPECT_THAT((*windows)[0].continuations[0], ElementsAre(256, 'a', 'b'));
  EXPECT_THAT((*windows)[1].context, ElementsAre('b'));
  EXPECT_THAT((*windows)[1].continuations[0], ElementsAre('c', 'd', 'e'));
  EXPECT_THAT((*windows)[2].context, ElementsAre('c', 'd', 'e'));
  EXPECT_THAT((*windows)[2].continuations[0], ElementsAre('f'));
  const auto bytes = EncodeWindows(*NewByteTokenizer(), "a", 3);
  EXPECT_FALSE(bytes.ok());
  EXPECT_THAT(*EncodeWindows(*NewByteTokenizer(), "", 3), IsEmpty());
}

TEST(EncodeRequestTest, LongContextsLoseTheirStart) {
  const std::unique_ptr<Tokenizer> bytes = NewByteTokenizer();
  // Positions 0..3 read "cd", "e" and predict "e", "f".
  const auto request = EncodeRequest(*bytes, "abcd", {"ef", "e"}, 3);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->context, ElementsAre('c', 'd'));
  const auto none = EncodeRequest(*bytes, "abcd", {"efghi"}, 3);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("5 tokens"));
}

// A reward model.
class Judge final : public IdleModel, public TokenModel, public TextScores {
 public:
  Judge() : IdleModel({}, 1) {}
  TokenModel* token_model() override { return this; }
  TextScores* text_scores() override { return this; }
  int64_t vocab_size() const override { return 256; }
  int64_t max_positions() const override { return 16; }
  at::Tensor Logits(const TokenInput&, UnitRunner&) override { return {}; }
  at::Tensor CrossEntropySum(const TokenInput&, const TokenTargets&,
                             UnitRunner&) override {
    return {};
  }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return absl::UnimplementedError("has none");
  }
  at::Tensor Scores(const TokenInput&, const at::Tensor&,
                    UnitRunner&) override {
    return {};
  }
};

TEST(CheckRequestsTest, TellsTheLongestOfAModelThatWrites) {
  const std::unique_ptr<Tokenizer> bytes = NewByteTokenizer();
  std::vector<Request> requests(2);
  requests[0].questions = {{"abcd", {"ef", "e"}}};
  requests[1].questions = {{"a", {"b"}}};
  PrefixModel model(256, 16);
  EXPECT_EQ(CheckRequests(Task(), requests, model, *bytes).value(), 6);
  Judge judge;
  EXPECT_THAT(
      std::string(
          CheckRequests(Task(), requests, judge, *bytes).status().message()),
      HasSubstr("reward model"));
}

TEST(EncodeRequestTest, AnEmptyContextNeedsABeginToken) {
  const std::unique_ptr<Tokenizer> bytes = NewByteTokenizer();
  const auto none = EncodeRequest(*bytes, "", {"a"}, 3);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("begin token"));
}

}  // namespace
}  // namespace capstan::evaluate
