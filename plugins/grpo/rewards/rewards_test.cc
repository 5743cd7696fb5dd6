// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/rewards.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "host/plugins/plugin_host.h"

namespace capstan::grpo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

using Configs = google::protobuf::RepeatedPtrField<Reward>;

Configs Parsed(const std::vector<std::string>& texts) {
  Configs configs;
  for (const std::string& text : texts) {
    EXPECT_TRUE(
        google::protobuf::TextFormat::ParseFromString(text, configs.Add()))
        << text;
  }
  return configs;
}

Answer Made(absl::string_view text, absl::string_view row, int64_t tokens) {
  Answer answer;
  answer.text = text;
  answer.row = row;
  answer.prompt = "How?";
  answer.tokens = tokens;
  return answer;
}

TEST(RewardsTest, WeightedSum) {
  auto rewards =
      Rewards::Create(Parsed({"math_answer {}",
                              "name: 'short' weight: 0.5 length { "
                              "max_tokens: 20 buffer: 10 }",
                              "weight: -2 regex { pattern: 'sorry' }"}));
  ASSERT_TRUE(rewards.ok()) << rewards.status();
  EXPECT_THAT((*rewards)->names(),
              ElementsAre("math_answer", "short", "regex"));
  const auto scores = (*rewards)->Score(
      {Made("4", "{\"answer\": 4}", 3), Made("5, sorry", "{\"answer\": 4}", 15),
       Made("4", "{\"answer\": null}", 15)});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(scores->totals, ElementsAre(1, -2.25, -0.25));
  EXPECT_THAT(scores->values,
              ElementsAre(ElementsAre(1, 0, IsNan()),
                          ElementsAre(0, -0.5, -0.5), ElementsAre(0, 1, 0)));
  const auto none = (*rewards)->Score({});
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->totals.empty());
  EXPECT_THAT(none->values,
              ElementsAre(ElementsAre(), ElementsAre(), ElementsAre()));
}

TEST(RewardsTest, AnAnswerThatNoneAppliesToIsAnError) {
  auto rewards = Rewards::Create(Parsed({"math_answer {}", "exact_match {}"}));
  ASSERT_TRUE(rewards.ok()) << rewards.status();
  EXPECT_EQ((*rewards)
                ->Score({Made("4", "{\"answer\": null}", 1)})
                .status()
                .message(),
            "none of the rewards (math_answer, exact_match) applies to the "
            "answer to \"How?\"; add one that does, or remove such rows");
}

TEST(RewardsTest, ErrorsNameTheReward) {
  auto rewards = Rewards::Create(
      Parsed({"exact_match {}",
              "name: 'judge' program { command: 'sh' "
              "command: '-c' command: 'read a; echo bad; read b' }"}));
  ASSERT_TRUE(rewards.ok()) << rewards.status();
  EXPECT_EQ((*rewards)->CheckRow("{}").message(),
            "the reward exact_match: the row has no field \"answer\"; it has "
            "none");
  EXPECT_TRUE((*rewards)->CheckRow("{\"answer\": 1}").ok());
  EXPECT_EQ(
      (*rewards)->Score({Made("4", "{\"answer\": 1}", 1)}).status().message(),
      "the reward judge: the program sh said of answer 1 of 1: \"bad\" "
      "isn't a number that a float can hold, {\"reward\": number} or null");
}

TEST(RewardsTest, ATotalThatNoFloatHoldsIsAnError) {
  auto rewards = Rewards::Create(
      Parsed({"weight: 3e38 program { command: 'sh' command: '-c' command: "
              "'read a; echo 1e10; read b' }"}));
  ASSERT_TRUE(rewards.ok()) << rewards.status();
  EXPECT_THAT(
      std::string((*rewards)->Score({Made("4", "{}", 1)}).status().message()),
      HasSubstr("which no float holds"));
}

TEST(RewardsTest, WrongConfigs) {
  const auto expect = [](const std::vector<std::string>& texts,
                         const char* field, const char* message) {
    const auto rewards = Rewards::Create(Parsed(texts));
    ASSERT_FALSE(rewards.ok());
    EXPECT_EQ(FieldOf(rewards.status()), field) << rewards.status();
    EXPECT_THAT(std::string(rewards.status().message()), HasSubstr(message));
  };
  expect({}, "reward", "at least one");
  expect({"name: 'x'"}, "reward[0]", "has no kind");
  expect({"math_answer {}", "name: 'x' math_answer { tolerance: 2 }"},
         "reward[1].math_answer.tolerance", "is 2");
  expect({"math_answer {}", "math_answer {}"}, "reward[1].name",
         "is \"math_answer\" again");
  expect({"weight: inf tags {}"}, "reward[0].weight", "must be finite");
  expect({"tags {}", "model {}"}, "reward[1].model.path", "must be set");
  expect({"model { path: 'm' timeout_seconds: 0 }"},
         "reward[0].model.timeout_seconds", "greater than 0");
}

class PluginTest : public testing::Test {
 protected:
  static std::string Folder(const char* package) {
    return absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/", package);
  }

  const PluginHost host_{
      {Folder("tests/plugins/acme"),
       Folder("plugins/algorithm_distillation/dark_key_to_door")}};
};

TEST_F(PluginTest, AnothersReward) {
  Configs configs;
  google::protobuf::Any* const plugin = configs.Add()->mutable_plugin();
  plugin->set_type_url("plugin/acme.terse.Config");
  // penalty: 0.25
  plugin->set_value(std::string("\x09\0\0\0\0\0\0\xd0\x3f", 9));
  const auto rewards = Rewards::Create(configs);
  ASSERT_TRUE(rewards.ok()) << rewards.status();
  EXPECT_THAT((*rewards)->names(), ElementsAre("acme.terse"));
  const auto scores = (*rewards)->Score({Made("", "{}", 2)});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(scores->totals, ElementsAre(0.5));
  // penalty: -0.25
  plugin->set_value(std::string("\x09\0\0\0\0\0\0\xd0\xbf", 9));
  const absl::Status status = Rewards::Create(configs).status();
  EXPECT_EQ(FieldOf(status), "reward[0].plugin.penalty") << status;
}

TEST_F(PluginTest, WhatIsNoReward) {
  const auto error = [](const char* type) {
    Configs configs;
    configs.Add()->mutable_plugin()->set_type_url(type);
    const absl::Status status = Rewards::Create(configs).status();
    EXPECT_EQ(FieldOf(status), "reward[0]");
    return std::string(status.message());
  };
  EXPECT_THAT(error("plugin/acme.none.Config"), HasSubstr("libacme_none.so"));
  EXPECT_THAT(error("plugin/capstan.dark_key_to_door.Config"),
              HasSubstr("isn't a reward: it must derive from "
                        "grpo::RewardFunction"));
}

}  // namespace
}  // namespace capstan::grpo
