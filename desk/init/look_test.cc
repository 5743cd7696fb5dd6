// SPDX-License-Identifier: Apache-2.0
#include "desk/init/look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"

namespace capstan::init {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/look/" + name;
  EXPECT_TRUE(
      MakeFolder(std::filesystem::path(path).parent_path().string()).ok());
  EXPECT_TRUE(WriteWholeFile(path, text).ok());
  return path;
}

DataLook MustLook(const std::string& path) {
  const absl::StatusOr<DataLook> look = LookAt(
      path,
      {absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/trainer/plugins")});
  EXPECT_TRUE(look.ok()) << look.status();
  return look.ok() ? *look : DataLook();
}

TEST(LookTest, RowsAreKnownByTheFirst) {
  struct Case {
    const char* name;
    const char* text;
    DataKind kind;
    bool plain;
    const char* opening;
  };
  const Case cases[] = {
      {"messages.jsonl",
       R"({"messages": [{"role": "system", "content": "{"}, )"
       R"({"role": "user", "content": "Who?"}]})",
       DataKind::kRows, false, "Who?"},
      {"sharegpt.json",
       R"([{"conversations": [{"from": "human", "value": "Why?"}]}, {}])",
       DataKind::kRows, false, "Why?"},
      {"data.json", R"({"data": [{"question": "Where?", "answer": "Here"}]})",
       DataKind::kRows, false, "Where?"},
      {"alpaca.jsonl", R"({"instruction": "Count.", "output": "1"})",
       DataKind::kRows, false, "Count."},
      {"completion.jsonl", R"({"prompt": "One", "completion": "two"})",
       DataKind::kRows, true, "One"},
      {"text.jsonl", R"({"text": "Once"})", DataKind::kRows, true, ""},
      {"pairs.jsonl", R"({"prompt": "Hi", "chosen": "a", "rejected": "b"})",
       DataKind::kPairs, true, "Hi"},
      {"labels.jsonl", R"({"prompt": "Hi", "completion": "a", "label": true})",
       DataKind::kLabels, true, "Hi"},
      {"numbers.jsonl", R"({"prompt": "Hi", "completion": "a", "label": 1})",
       DataKind::kLabels, true, "Hi"},
      {"unlabelled.jsonl", R"({"text": "Once", "label": null})",
       DataKind::kRows, true, ""},
      {"second.jsonl",
       "{\"text\": 1}\n{\"question\": \"a\", \"answer\": \"b\"}",
       DataKind::kRows, false, "a"},
      {"unknown.jsonl", "{\"some\": 1}", DataKind::kRows, false, ""},
      {"story.txt", "\n Once upon a time\nthere was", DataKind::kText, false,
       "Once upon a time"},
      {"histories", "\x89HDF\r\n\x1a\n..", DataKind::kHistories, false, ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const DataLook look = MustLook(Write(c.name, c.text));
    EXPECT_EQ(look.kind, c.kind);
    EXPECT_EQ(look.plain_texts, c.plain);
    EXPECT_EQ(look.opening, c.opening);
  }
  EXPECT_THAT(MustLook(::testing::TempDir() + "/look/messages.jsonl").roles,
              ElementsAre("system", "user"));
  EXPECT_EQ(MustLook(::testing::TempDir() + "/look/alpaca.jsonl").row_kind,
            "ALPACA");
}

TEST(LookTest, LabelsThatNothingLearnsAreTold) {
  const std::vector<std::string> plugins = {
      absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/trainer/plugins")};
  const auto error = [&](const char* name, const char* text) {
    return std::string(LookAt(Write(name, text), plugins).status().message());
  };
  for (const auto& [name, text, label] :
       {std::tuple("classes.jsonl", R"({"text": "Good", "label": 1})", "1"),
        std::tuple("sets.json", R"([{"labels": [0, 3], "text": "Good"}])",
                   "[0, 3]"),
        std::tuple("empty.csv", "text,label\nGood,\n", ""),
        std::tuple("answers.csv", "prompt,completion,label\nHi,a,\n", ""),
        std::tuple("tokens.jsonl",
                   R"({"prompt": "Hi", "completion": "a", "labels": [1, 2]})",
                   "")}) {
    const DataLook look = MustLook(Write(name, text));
    EXPECT_EQ(look.kind, DataKind::kRows) << name;
    EXPECT_EQ(look.label, label) << name;
  }
  EXPECT_THAT(error("marks.jsonl",
                    R"({"prompt": "Hi", "completion": "a", "label": "good"})"),
              AllOf(HasSubstr("a label, \"good\", which isn't true or false"),
                    HasSubstr("KTO")));
}

TEST(LookTest, PromptsWithoutAnswersAreTold) {
  const std::vector<std::string> plugins = {
      absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/trainer/plugins")};
  for (const char* const text :
       {R"({"prompt": "7+5=", "solution": "12"})",
        R"({"prompt": [{"role": "user", "content": "7+5="}], "tests": []})"}) {
    EXPECT_THAT(
        std::string(
            LookAt(Write("prompts.jsonl", text), plugins).status().message()),
        HasSubstr("prompts without answers"));
  }
}

TEST(LookTest, AFolderIsWhatMostOfItIs) {
  Write("code/.git/objects", "no text of the user's");
  Write("code/package.json", "{\"name\": 1}");
  Write("code/picture", std::string("\0\1\2", 3));
  const std::string last = Write("code/sub/b.cc", "int main() { return 0; }");
  const std::string first = Write("code/a.md", "# A");
  const std::string folder = ::testing::TempDir() + "/look/code";
  EXPECT_THAT(MustLook(folder).files, ElementsAre(first, last));
  EXPECT_EQ(MustLook(folder).left_out, 1);
  // What init made there before.
  Write("code/n.joined.txt", "# A");
  Write("code/n.pbtxt", "# proto-file: host/config/run_config.proto\nmodel {}");
  EXPECT_THAT(MustLook(folder).files, ElementsAre(first, last));
  Write("rows/README.md", "# Rows");
  Write("rows/train.jsonl", R"({"question": "Where?", "answer": "Here"})");
  const DataLook rows = MustLook(::testing::TempDir() + "/look/rows");
  EXPECT_EQ(rows.kind, DataKind::kRows);
  EXPECT_THAT(rows.files, ElementsAre(HasSubstr("train.jsonl")));
  Write("model/config.json", "{}");
  Write("model/model.safetensors", "..");
  EXPECT_EQ(MustLook(::testing::TempDir() + "/look/model").kind,
            DataKind::kModel);
}

TEST(LookTest, WhatIsNoDataIsSaid) {
  const auto error = [](const std::string& path) {
    return std::string(LookAt(path).status().message());
  };
  EXPECT_THAT(error("/nowhere/a.txt"), HasSubstr("a.txt doesn't exist"));
  EXPECT_THAT(error(Write("empty.txt", "")), HasSubstr("empty.txt is empty"));
  EXPECT_THAT(error(Write("binary", std::string("a\0b", 3))),
              HasSubstr("binary is neither UTF-8 text nor"));
  EXPECT_THAT(error(Write("latin1.txt", "na\xefve indeed")),
              HasSubstr("neither UTF-8 text"));
  Write("nothing/picture", std::string("\0\1\2", 3));
  EXPECT_THAT(error(::testing::TempDir() + "/look/nothing"),
              HasSubstr("no file that can be trained on"));
  // A character that the look cuts is none that is wrong.
  EXPECT_THAT(
      MustLook(Write("long.txt", std::string((1 << 20) - 1, 'a') + "\u00e9"))
          .files,
      SizeIs(1));
}

}  // namespace
}  // namespace capstan::init
