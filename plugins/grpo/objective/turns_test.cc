// SPDX-License-Identifier: Apache-2.0
//
// Answers of several turns by a fake model, and programs that reply to them,
// some of them badly.
#include "plugins/grpo/objective/turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/grpo/objective/fake_data.h"
#include "plugins/sdk/prefix_model_for_test.h"

namespace capstan::grpo {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

Tools Python(const std::string& source, int64_t max_turns = 0) {
  Tools config;
  for (const std::string& word :
       {std::string("/usr/bin/python3"), std::string("-c"),
        absl::StrCat("import json, sys, time\nfor line in sys.stdin:\n"
                     "    a = json.loads(line)\n    print(",
                     source, ", flush=True)\n")}) {
    config.mutable_program()->add_command(word);
  }
  config.set_max_turns(max_turns);
  return config;
}

// Says the turn's number and length, if its length isn't a multiple of five.
constexpr char kCounts[] =
    "json.dumps(None if len(a['text']) % 5 == 0 else '<%d %d>' % (a['turn'], "
    "len(a['text'])))";

class TurnsTest : public ::testing::Test {
 protected:
  TurnsTest() : model_(128, 256) {
    // A turn of about eight tokens.
    for (int64_t token = 0; token < 128; token += 8) {
      model_.other_ends.push_back(token);
    }
    options_.max_new_tokens = 64;
    for (int q = 0; q < 3; ++q) {
      questions_.push_back({std::vector<int64_t>(5 + q, 65 + q), {}});
      for (int i = 0; i < 4; ++i) {
        questions_.back().seeds.push_back(100 * q + i);
      }
      rows_.push_back(
          absl::StrCat("{\"prompt\": \"", q, "\", \"n\": ", q, "}"));
    }
  }

  absl::StatusOr<std::vector<Conversation>> Sampled(const Tools* config) {
    std::unique_ptr<ToolProgram> tools;
    if (config != nullptr) {
      tools = ToolProgram::Create(*config).value();
      tools->Prepare(data_);
    }
    PlainRunner runner;
    return Converse(
        &model_, questions_, rows_, options_, *data_.tokenizer(), tools.get(),
        [](bool done) { return done; }, runner);
  }
  std::vector<Conversation> MustSample(const Tools& config) {
    auto sampled = Sampled(&config);
    EXPECT_TRUE(sampled.ok()) << sampled.status();
    return sampled.ok() ? *std::move(sampled) : std::vector<Conversation>();
  }
  std::string ErrorOf(const Tools& config) {
    return std::string(Sampled(&config).status().message());
  }

  FakeData data_{{}};
  PrefixModel model_;
  AnswerOptions options_;
  std::vector<Question> questions_;
  std::vector<std::string> rows_;
};

TEST_F(TurnsTest, WhatToolsSayIsInTheTextAndIsNotTheModels) {
  int64_t turns = 0;
  for (const Conversation& one : MustSample(Python(kCounts))) {
    turns += one.turn;
    ASSERT_EQ(one.log_probs.size(), one.text.size() - one.prompt);
    ASSERT_EQ(one.told.size() % 2, 0u);
    // A reply that doesn't fit is the last one.
    const bool cut = one.calls > static_cast<int64_t>(one.told.size() / 2);
    EXPECT_EQ(one.calls - (cut ? 1 : 0),
              static_cast<int64_t>(one.told.size() / 2));
    EXPECT_TRUE(one.truncated || !cut);
    EXPECT_EQ(one.failures, 0);
    const Json messages = Json::parse(one.messages);
    // What each turn said, by places and by messages.
    std::string text = one.question;
    int64_t own = 0, place = one.prompt, turn = 0;
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string content = messages[i]["content"];
      if (i % 2 == 1) {
        EXPECT_EQ(messages[i]["role"], "tool");
        EXPECT_EQ(
            content,
            absl::StrCat("<", turn, " ",
                         messages[i - 1]["content"].get<std::string>().size(),
                         ">"));
        ASSERT_LT(i, one.told.size() + 1);
        EXPECT_EQ(one.told[i - 1], place);
        for (const char c : content) {
          EXPECT_EQ(one.text[place], c);
          EXPECT_EQ(one.log_probs[place - one.prompt], 0.0f);
          ++place;
        }
        EXPECT_EQ(one.told[i], place);
        continue;
      }
      EXPECT_EQ(messages[i]["role"], "assistant");
      ++turn;
      for (const char c : content) {
        EXPECT_EQ(one.text[place], c);
        EXPECT_LT(one.log_probs[place - one.prompt], 0.0f);
        ++place;
      }
      own += static_cast<int64_t>(content.size());
      if (i + 1 < messages.size() || !one.truncated || cut) {
        EXPECT_EQ(one.text[place] % 8, 0);
        ++place;
        ++own;
      }
    }
    EXPECT_EQ(place, static_cast<int64_t>(one.text.size()));
    EXPECT_EQ(own, one.own());
    EXPECT_EQ(turn, one.turn);
    EXPECT_EQ(messages.back()["content"], one.last_turn);
    EXPECT_LE(one.text.size() - one.prompt, 64u);
    EXPECT_TRUE(one.truncated || one.last_turn.size() % 5 == 0);
    EXPECT_EQ(one.answer().tokens, own);
  }
  EXPECT_GT(turns, 24);
}

TEST_F(TurnsTest, AnswersAreTheSameHoweverTheyAreDivided) {
  const Tools config = Python(kCounts);
  const std::vector<Conversation> all = MustSample(config);
  const auto expect_same = [&all](const std::vector<Conversation>& others) {
    ASSERT_EQ(others.size(), all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(others[i].text, all[i].text);
      EXPECT_EQ(others[i].log_probs, all[i].log_probs);
      EXPECT_EQ(others[i].told, all[i].told);
      EXPECT_EQ(others[i].messages, all[i].messages);
    }
  };
  options_.rows = 4;
  expect_same(MustSample(config));
  options_.rows = 0;
  // Positions for the longest answer, and no more.
  PrefixModel tight(128, 7 + 64);
  tight.other_ends = model_.other_ends;
  PlainRunner runner;
  const auto tools = ToolProgram::Create(config).value();
  tools->Prepare(data_);
  auto sampled = Converse(
      &tight, questions_, rows_, options_, *data_.tokenizer(), tools.get(),
      [](bool done) { return done; }, runner);
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  expect_same(*sampled);
}

TEST_F(TurnsTest, TheFirstTurnIsThatOfAnAnswerOfOne) {
  const std::vector<Conversation> all = MustSample(Python(kCounts));
  const auto alone = Sampled(nullptr);
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const Tools& config : {Python(kCounts, 1), Python("'null'")}) {
    const std::vector<Conversation> one = MustSample(config);
    for (size_t i = 0; i < all.size(); ++i) {
      const Conversation& plain = (*alone)[i];
      EXPECT_EQ(one[i].text, plain.text);
      EXPECT_EQ(one[i].turn, 1);
      EXPECT_EQ(one[i].calls, 0);
      EXPECT_EQ(plain.messages, "");
      ASSERT_GE(all[i].text.size(), plain.text.size());
      EXPECT_TRUE(std::equal(plain.text.begin(), plain.text.end(),
                             all[i].text.begin()));
    }
  }
  int64_t most = 0;
  for (const Conversation& one : MustSample(Python(kCounts, 2))) {
    most = std::max(most, one.turn);
  }
  EXPECT_EQ(most, 2);
}

TEST_F(TurnsTest, WhatDoesNotFitIsNotSaid) {
  int64_t cut = 0;
  for (const Conversation& one : MustSample(Python("'\"' + 'x' * 60 + '\"'"))) {
    EXPECT_TRUE(one.truncated);
    EXPECT_LE(one.text.size() - one.prompt, 64u);
    if (one.calls != 1 || !one.told.empty()) continue;
    ++cut;
    EXPECT_EQ(one.text.back() % 8, 0);  // its turn has ended
    EXPECT_EQ(static_cast<size_t>(one.own()), one.last_turn.size() + 1);
    EXPECT_EQ(Json::parse(one.messages).size(), 1u);
  }
  EXPECT_GT(cut, 0);
}

TEST_F(TurnsTest, FailuresAreCounted) {
  for (const Conversation& one : MustSample(
           Python("json.dumps([{'content': 'no', 'failed': True}, 'yes'] if "
                  "a['turn'] == 1 else None)"))) {
    if (one.turn == 1) continue;
    EXPECT_EQ(one.calls, 2);
    EXPECT_EQ(one.failures, 1);
    const Json messages = Json::parse(one.messages);
    EXPECT_EQ(messages[1], Json({{"role", "tool"}, {"content", "no"}}));
    EXPECT_EQ(messages[2], Json({{"role", "tool"}, {"content", "yes"}}));
    EXPECT_EQ(one.told[1] - one.told[0], 5);
  }
}

TEST_F(TurnsTest, ProgramsSeeTheWholeConversation) {
  // Whether all is there that the docs promise; else it says no JSON.
  const std::string checks =
      "json.dumps(None if a['turn'] == 2 else 'on') if "
      "a['row']['n'] == len(a['prompt']) - 5 and len(a['messages']) == 2 * "
      "a['turn'] - 1 and a['messages'][-1] == {'role': 'assistant', 'content': "
      "a['text']} and (a['turn'] == 1 or a['messages'][1] == {'role': 'tool', "
      "'content': 'on'}) else a";
  EXPECT_EQ(MustSample(Python(checks)).size(), 12u);
}

TEST_F(TurnsTest, LiesAreQuoted) {
  for (const char* const lie :
       {"NaN", "12", "true", "{}", "hello", "[null]", "[[]]",
        "{\"role\": \"tool\"}", "{\"content\": 12}",
        "{\"role\": 3, \"content\": \"x\"}",
        "{\"role\": \"assistant\", \"content\": \"x\"}",
        "{\"content\": \"x\", \"failed\": 1}", ""}) {
    EXPECT_THAT(
        ErrorOf(Python(absl::StrCat("'''", lie, "'''"))),
        AllOf(HasSubstr("the tools: the program /usr/bin/python3 said of "
                        "answer 1 of "),
              HasSubstr(absl::StrCat(Json(lie).dump(), " isn't null"))))
        << lie;
  }
  // A line that is too long, and one more than it was asked for.
  EXPECT_THAT(ErrorOf(Python("'x' * 10000000")),
              HasSubstr("or without an end"));
  EXPECT_NE(ErrorOf(Python("'\"on\"\\nnull'")), "");
}

TEST_F(TurnsTest, ThoseThatDieOrHangAreNamed) {
  Tools config = Python("sys.exit(3)");
  config.mutable_program()->set_restarts(1);
  EXPECT_THAT(ErrorOf(config),
              AllOf(HasSubstr("the tools: the program /usr/bin/python3 ended "
                              "with exit code 3, asked for answer 1 of "),
                    HasSubstr("after 1 restart;")));
  config = Python("time.sleep(1000)");  // sleeps: what hangs
  config.mutable_program()->set_restarts(0);
  config.mutable_program()->set_timeout_seconds(0.3);
  EXPECT_THAT(ErrorOf(config), HasSubstr("within 0.3 s"));
  EXPECT_EQ(FieldOf(ToolProgram::Create({}).status()).value_or(""),
            "tools.program.command");
  config.set_max_turns(-1);
  EXPECT_EQ(FieldOf(ToolProgram::Create(config).status()).value_or(""),
            "tools.max_turns");
}

// Rank 0 of two has fewer turns than the other.
TEST_F(TurnsTest, WaitsForRanksThatSampleMore) {
  int forwards = 0, asked = 0;
  const Tools config = Python("'null'");
  const auto tools = ToolProgram::Create(config).value();
  tools->Prepare(data_);
  PlainRunner runner;
  constexpr int kMore = 200;
  const auto sampled = Converse(
      &model_, questions_, rows_, options_, *data_.tokenizer(), tools.get(),
      [&](bool done) {
        ++asked;
        if (done) ++forwards;
        return done && asked > kMore;
      },
      runner);
  ASSERT_TRUE(sampled.ok()) << sampled.status();
  EXPECT_EQ(asked, kMore + 1);
  EXPECT_GT(forwards, 1);
}

}  // namespace
}  // namespace capstan::grpo
