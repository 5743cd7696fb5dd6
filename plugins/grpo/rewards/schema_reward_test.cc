// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "plugins/grpo/rewards/kinds.h"

namespace capstan::grpo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

constexpr char kSchema[] = R"({
  "type": "object", "required": ["name"], "additionalProperties": false,
  "properties": {"name": {"type": "string", "pattern": "^[A-Z]"},
                 "age": {"type": "integer", "minimum": 0},
                 "friends": {"type": "array", "items": {"$ref": "#"}}}})";

JsonSchema Config(const std::string& schema) {
  JsonSchema config;
  config.set_schema(schema);
  return config;
}

std::vector<double> Scores(const MadeReward& reward,
                           const std::vector<std::string>& texts,
                           const std::string& row = "{}") {
  EXPECT_TRUE(reward.ok()) << reward.status();
  std::vector<Answer> answers(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    answers[i].text = texts[i];
    answers[i].row = row;
  }
  const auto values = (*reward)->Score(answers);
  EXPECT_TRUE(values.ok()) << values.status();
  return values.ok() ? *values : std::vector<double>();
}

TEST(JsonSchemaTest, JsonThatSatisfiesIt) {
  EXPECT_THAT(Scores(NewJsonSchema(Config(kSchema)),
                     {"{\"name\": \"Ann\", \"age\": 3}", "{\"age\": 3}",
                      "{\"name\": \"ann\"}", "{\"name\": \"Ann\", \"more\": 1}",
                      "{\"name\": \"Ann\"", "",
                      "{\"name\": \"A\", \"friends\": [{\"name\": \"B\"}]}",
                      "{\"name\": \"A\", \"friends\": [{\"name\": 7}]}"}),
              ElementsAre(1, 0, 0, 0, 0, 0, 1, 0));
}

TEST(JsonSchemaTest, TheLastBlockCounts) {
  EXPECT_THAT(Scores(NewJsonSchema(Config(kSchema)),
                     {"Here:\n```json\n{\"name\": 7}\n```\nNo:\n"
                      "```json\n{\"name\": \"Ann\"}\n```\nDone.",
                      "Here: {\"name\": \"Ann\"}"}),
              ElementsAre(1, 0));
}

TEST(JsonSchemaTest, AFieldOfTheRow) {
  JsonSchema config;
  config.set_field("schema");
  const MadeReward reward = NewJsonSchema(config);
  EXPECT_THAT(
      Scores(reward, {"3", "\"3\""}, "{\"schema\": {\"type\": \"integer\"}}"),
      ElementsAre(1, 0));
  EXPECT_THAT(
      Scores(reward, {"3"}, "{\"schema\": \"{\\\"type\\\": \\\"string\\\"}\"}"),
      ElementsAre(0));
  EXPECT_THAT(Scores(reward, {"3"}, "{\"schema\": null}"),
              ElementsAre(IsNan()));
  EXPECT_THAT(std::string((*reward)->CheckRow("{}").message()),
              HasSubstr("no field \"schema\""));
  Answer answer;
  answer.row = "{\"schema\": {\"type\": 3}}";
  EXPECT_THAT(std::string((*reward)->Score({answer}).status().message()),
              HasSubstr("isn't a JSON schema"));
}

// std::regex recurses once a character, and tries all ways.
TEST(JsonSchemaTest, AnAnswerThatCrashesTheLibraryGets0) {
  const MadeReward reward = NewJsonSchema(
      Config("{\"type\": \"string\", \"pattern\": \"^(a|b)*$\"}"));
  EXPECT_THAT(
      Scores(reward, {"\"ab\"", "\"" + std::string(3'000'000, 'a') + "c\"",
                      "\"ba\"", "\"c\""}),
      ElementsAre(1, 0, 1, 0));
}

TEST(JsonSchemaTest, WrongConfigs) {
  const auto expect = [](const JsonSchema& config, const char* field,
                         const char* message) {
    const MadeReward reward = NewJsonSchema(config);
    ASSERT_FALSE(reward.ok());
    EXPECT_EQ(FieldOf(reward.status()), field);
    EXPECT_THAT(std::string(reward.status().message()), HasSubstr(message));
  };
  expect({}, "path", "one of path, schema and field");
  expect(Config("[1]"), "schema", "isn't a JSON object");
  expect(Config("{\"type\": 7}"), "schema", "isn't a JSON schema: ");
  JsonSchema config;
  config.set_path("/no/such/file");
  expect(config, "path", "/no/such/file");
  config.set_schema("{}");
  expect(config, "path", "one of path, schema and field");
  const ScratchFolder folder;
  config.clear_schema();
  config.set_path(absl::StrCat(folder.path(), "/schema.json"));
  ASSERT_TRUE(WriteWholeFile(config.path(), kSchema).ok());
  EXPECT_THAT(Scores(NewJsonSchema(config), {"{\"name\": \"Ann\"}"}),
              ElementsAre(1));
}

}  // namespace
}  // namespace capstan::grpo
