// SPDX-License-Identifier: Apache-2.0
//
// Rewards that look at an answer's text, length and row.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/status.h"
#include "plugins/grpo/rewards/kinds.h"

namespace capstan::grpo {
namespace {

using ::testing::HasSubstr;

template <typename Config>
Config Parsed(const std::string& text) {
  Config config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
  return config;
}

double ScoreOf(const MadeReward& reward, const Answer& answer) {
  EXPECT_TRUE(reward.ok()) << reward.status();
  const auto values = (*reward)->Score({answer});
  EXPECT_TRUE(values.ok()) << values.status();
  return values.ok() ? values->at(0) : -100.0;
}

double TextScore(const MadeReward& reward, absl::string_view text,
                 absl::string_view row = "{}", absl::string_view prompt = "") {
  Answer answer;
  answer.row = row;
  answer.prompt = prompt;
  answer.text = text;
  return ScoreOf(reward, answer);
}

void ExpectFieldError(const MadeReward& reward, const char* field) {
  ASSERT_FALSE(reward.ok());
  EXPECT_EQ(FieldOf(reward.status()), field) << reward.status();
}

TEST(ExactMatchTest, TrimsBoth) {
  const MadeReward reward = NewExactMatch({});
  const char* const row = "{\"answer\": \" Paris\\n\"}";
  EXPECT_EQ(TextScore(reward, "\nParis ", row), 1.0);
  EXPECT_EQ(TextScore(reward, "paris", row), 0.0);
  EXPECT_EQ(TextScore(reward, "It is Paris", row), 0.0);
  EXPECT_EQ(TextScore(NewExactMatch(Parsed<ExactMatch>("ignore_case: true")),
                      "paris", row),
            1.0);
  EXPECT_EQ(TextScore(reward, "42", "{\"answer\": 42}"), 1.0);
}

TEST(ExactMatchTest, PatternsExtractFromBoth) {
  const MadeReward reward = NewExactMatch(
      Parsed<ExactMatch>("field: 'solution' field_pattern: '#### (.*)' "
                         "pattern: '#### (-?[0-9.,]+)'"));
  const char* const row = "{\"solution\": \"2 + 2 = 4\\n#### 4\"}";
  EXPECT_EQ(TextScore(reward, "#### 3, no: #### 4", row), 1.0);
  EXPECT_EQ(TextScore(reward, "4", row), 0.0);
  const absl::Status status = (*reward)->CheckRow("{\"solution\": \"4\"}");
  EXPECT_EQ(status.message(),
            "the row's field \"solution\", \"4\", has no match of "
            "field_pattern");
}

TEST(ExactMatchTest, RowsWithoutTheField) {
  const MadeReward reward = NewExactMatch(Parsed<ExactMatch>("field: 'a.b'"));
  EXPECT_EQ((*reward)->CheckRow("{\"a\": {\"c\": 1}, \"d\": 2}").message(),
            "the row has no field \"a.b\"; it has a, d");
  EXPECT_FALSE((*reward)->CheckRow("[1").ok());
  EXPECT_TRUE((*reward)->CheckRow("{\"a\": {\"b\": 1}}").ok());
  EXPECT_TRUE((*reward)->CheckRow("{\"a.b\": 1}").ok());
  // Not for this reward.
  EXPECT_TRUE((*reward)->CheckRow("{\"a.b\": null}").ok());
  EXPECT_TRUE(std::isnan(TextScore(reward, "x", "{\"a.b\": null}")));
}

TEST(ExactMatchTest, WrongConfigs) {
  ExpectFieldError(NewExactMatch(Parsed<ExactMatch>("pattern: 'a('")),
                   "pattern");
  ExpectFieldError(NewExactMatch(Parsed<ExactMatch>("field_pattern: 'a('")),
                   "field_pattern");
  ExpectFieldError(NewExactMatch(Parsed<ExactMatch>("field: ''")), "field");
}

TEST(MathAnswerTest, ComparesTheLastValueWithTheRows) {
  const MadeReward reward = NewMathAnswer({});
  EXPECT_EQ(TextScore(reward, "so \\boxed{1,200}",
                      "{\"answer\": \"6 * 200 = 1200\\n#### 1200\"}"),
            1.0);
  EXPECT_EQ(TextScore(reward, "That makes 1200 dollars.", "{\"answer\": 1200}"),
            1.0);
  EXPECT_EQ(TextScore(reward, "That makes 1201.", "{\"answer\": 1200}"), 0.0);
  EXPECT_EQ(TextScore(reward, "(1, 2)", "{\"answer\": \"(1,2)\"}"), 0.0)
      << "no mark: the last number counts";
  EXPECT_EQ(TextScore(reward, "\\boxed{(1, 2)}", "{\"answer\": \"(1,2)\"}"),
            1.0);
  EXPECT_EQ(TextScore(reward, "", "{\"answer\": 1200}"), 0.0);
  EXPECT_EQ(TextScore(NewMathAnswer(Parsed<MathAnswer>("tolerance: 0.01")),
                      "3.14", "{\"answer\": \"\\\\pi\"}"),
            1.0);
  ExpectFieldError(NewMathAnswer(Parsed<MathAnswer>("tolerance: -1")),
                   "tolerance");
}

TEST(RegexTest, IsFoundAnywhere) {
  const MadeReward reward = NewRegex(Parsed<Regex>("pattern: '(?m)^yes$'"));
  EXPECT_EQ(TextScore(reward, "no\nyes\n"), 1.0);
  EXPECT_EQ(TextScore(reward, "yes no"), 0.0);
  // An empty match is one.
  EXPECT_EQ(TextScore(NewRegex(Parsed<Regex>("pattern: 'x*'")), ""), 1.0);
  // One that tries too much ends.
  EXPECT_EQ(TextScore(NewRegex(Parsed<Regex>("pattern: '(a+)+$'")),
                      std::string(60, 'a') + "b"),
            0.0);
  ExpectFieldError(NewRegex({}), "pattern");
}

double LengthScore(const std::string& config, int64_t tokens) {
  Answer answer;
  answer.tokens = tokens;
  return ScoreOf(NewLength(Parsed<Length>(config)), answer);
}

// Equation 13 of DAPO, with its values.
TEST(LengthTest, SoftOverlongPunishment) {
  const char* const dapo = "max_tokens: 20480 buffer: 4096";
  EXPECT_EQ(LengthScore(dapo, 0), 0.0);
  EXPECT_EQ(LengthScore(dapo, 16384), 0.0);
  EXPECT_EQ(LengthScore(dapo, 16384 + 1024), -0.25);
  EXPECT_EQ(LengthScore(dapo, 20480), -1.0);
  EXPECT_EQ(LengthScore(dapo, 20481), -1.0);
  EXPECT_EQ(LengthScore("max_tokens: 10", 10), 0.0);
  EXPECT_EQ(LengthScore("max_tokens: 10", 11), -1.0);
}

TEST(LengthTest, ShortAnswers) {
  EXPECT_EQ(LengthScore("min_tokens: 10", 0), -1.0);
  EXPECT_EQ(LengthScore("min_tokens: 10", 5), -0.5);
  EXPECT_EQ(LengthScore("min_tokens: 10", 10), 0.0);
  EXPECT_EQ(LengthScore("min_tokens: 10", 1000), 0.0);
}

TEST(LengthTest, WrongConfigs) {
  const auto expect = [](const char* text, const char* field) {
    ExpectFieldError(NewLength(Parsed<Length>(text)), field);
  };
  expect("", "max_tokens");
  expect("max_tokens: -1", "max_tokens");
  expect("min_tokens: -1", "min_tokens");
  expect("max_tokens: 10 buffer: 11", "buffer");
  expect("min_tokens: 10 buffer: 1", "buffer");
  expect("max_tokens: 10 buffer: 5 min_tokens: 6", "min_tokens");
}

TEST(TagsTest, EachOnceAndInOrder) {
  const MadeReward reward = NewTags({});
  EXPECT_EQ(TextScore(reward, "<think>a\nb</think>\n<answer>4</answer>\n"),
            1.0);
  EXPECT_EQ(TextScore(reward, "<think></think><answer></answer>"), 1.0);
  for (const char* const wrong :
       {"", "4", "<think>a</think>", "<answer>4</answer><think>a</think>",
        "<think>a</think>so <answer>4</answer>",
        "<think>a</think><answer>4</answer>.",
        "<think>a<think>b</think><answer>4</answer>",
        "<think>a</think><answer>4</answer><answer>5</answer>",
        "<think>a<answer>3</answer></think><answer>4</answer>",
        "<think>a</think><answer>4", "a</think><answer>4</answer>"}) {
    EXPECT_EQ(TextScore(reward, wrong), 0.0) << wrong;
  }
}

TEST(TagsTest, ThePromptMayHaveOpenedTheFirst) {
  const MadeReward reward = NewTags({});
  const char* const prompt = "<|assistant|>\n<think>\n";
  EXPECT_EQ(TextScore(reward, "a</think><answer>4</answer>", "{}", prompt),
            1.0);
  EXPECT_EQ(
      TextScore(reward, "<think>a</think><answer>4</answer>", "{}", prompt),
      0.0);
}

TEST(TagsTest, OthersNames) {
  const MadeReward reward = NewTags(Parsed<Tags>("tag: 'plan' tag: 'do'"));
  EXPECT_EQ(TextScore(reward, "<plan>x</plan> <do>y</do>"), 1.0);
  ExpectFieldError(NewTags(Parsed<Tags>("tag: '<a>'")), "tag");
  ExpectFieldError(NewTags(Parsed<Tags>("tag: 'a' tag: 'a'")), "tag");
}

}  // namespace
}  // namespace capstan::grpo
