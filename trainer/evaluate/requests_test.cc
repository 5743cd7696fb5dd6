// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace capstan::evaluate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<Document> Rows(const std::vector<std::string>& rows) {
  std::vector<Document> documents;
  for (const std::string& row : rows) {
    documents.push_back(
        {Json::parse(row), "row " + std::to_string(documents.size())});
  }
  return documents;
}

const std::vector<std::string> kArc = {
    R"({"question": "Q1", "choices": {"text": ["é", "two"], "label": ["A", "B"]}, "answerKey": "B"})",
    R"({"question": "Q2", "choices": {"text": ["x", "y"], "label": ["A", "B"]}, "answerKey": "A"})",
    R"({"question": "Q3", "choices": {"text": ["it's", "\"z\""], "label": ["1", "2"]}, "answerKey": "2"})"};

Task Arc() {
  Task task;
  task.path = "arc.yaml";
  task.doc_to_text = "Question: {{question}}\nAnswer:";
  task.doc_to_target = "{{choices.label.index(answerKey)}}";
  task.doc_to_choice = "{{choices.text}}";
  return task;
}

TEST(RequestsTest, ChoicesFollowTheContext) {
  const auto requests = MakeRequests(Arc(), Rows(kArc), {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  const Request& first = (*requests)[0];
  EXPECT_EQ(first.context, "Question: Q1\nAnswer:");
  EXPECT_THAT(first.continuations, ElementsAre(" é", " two"));
  EXPECT_THAT(first.characters, ElementsAre(1, 3));
  EXPECT_THAT(first.gold, ElementsAre(1));
  EXPECT_THAT((*requests)[2].continuations, ElementsAre(" it's", " \"z\""));
}

TEST(RequestsTest, ExamplesAreOthers) {
  Task task = Arc();
  task.num_fewshot = 1;
  task.description = "D.\n";
  const auto requests = MakeRequests(task, Rows(kArc), Rows(kArc));
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].context,
            "D.\nQuestion: Q2\nAnswer: x\n\nQuestion: Q1\nAnswer:");
  EXPECT_EQ((*requests)[1].context,
            "D.\nQuestion: Q1\nAnswer: two\n\nQuestion: Q2\nAnswer:");
  // Also behind its twins.
  std::vector<std::string> twins(4, kArc[0]);
  twins.push_back(kArc[2]);
  const auto behind = MakeRequests(task, Rows({kArc[0]}), Rows(twins));
  ASSERT_TRUE(behind.ok()) << behind.status();
  EXPECT_THAT((*behind)[0].context, HasSubstr("Question: Q3"));
  task.num_fewshot = 3;
  const auto too_many = MakeRequests(task, Rows(kArc), Rows(kArc));
  ASSERT_FALSE(too_many.ok());
  EXPECT_THAT(std::string(too_many.status().message()),
              HasSubstr("only 2 other rows"));
}

TEST(RequestsTest, ColumnsAndConstants) {
  Task task;
  task.path = "t.yaml";
  task.doc_to_text = "ctx";
  task.doc_to_target = "label";
  task.doc_to_choice = {"no", "yes"};
  const auto requests = MakeRequests(
      task,
      Rows({R"({"ctx": "c{{d", "label": 1})", R"({"ctx": "e", "label": true})",
            R"({"ctx": "f", "label": "no"})"}),
      {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].context, "c{{d");
  EXPECT_THAT((*requests)[0].gold, ElementsAre(1));
  EXPECT_THAT((*requests)[1].gold, ElementsAre(1));
  EXPECT_THAT((*requests)[2].gold, ElementsAre(0));
}

TEST(RequestsTest, LikelihoodAndGeneration) {
  Task task;
  task.path = "t.yaml";
  task.output = TaskOutput::kLogLikelihood;
  task.doc_to_text = "{{text.split(' ')[:-1]|join(' ')}}";
  task.doc_to_target = "{{' '+text.split(' ')[-1]}}";
  const std::vector<Document> rows = Rows({R"({"text": "a b c"})"});
  auto requests = MakeRequests(task, rows, {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].context, "a b");
  EXPECT_THAT((*requests)[0].continuations, ElementsAre(" c"));
  task.output = TaskOutput::kGenerateUntil;
  task.doc_to_text = "{{text}}:\n";
  task.doc_to_target = "{{ [text, 'd'] }}";
  requests = MakeRequests(task, rows, {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].context, "a b c:\n");
  EXPECT_TRUE((*requests)[0].continuations.empty());
  EXPECT_THAT((*requests)[0].references, ElementsAre("a b c", "d"));
}

TEST(RequestsTest, ErrorsNameTheRow) {
  Task task = Arc();
  std::vector<std::string> rows = kArc;
  rows[1] =
      R"({"question": "Q2", "choices": {"text": ["x"], "label": ["A"]}, "answerKey": "Z"})";
  const auto missing = MakeRequests(task, Rows(rows), {});
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("row 1"));
  task.doc_to_target = 7;
  const auto beyond = MakeRequests(task, Rows(kArc), {});
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(std::string(beyond.status().message()),
              HasSubstr("none of the 2 choices"));
}

TEST(DocumentsTest, LinesAndLists) {
  const char* const tmp = std::getenv("TEST_TMPDIR");
  const std::string folder = tmp != nullptr ? tmp : "/tmp";
  const auto write = [&](const char* name, const char* text) {
    std::ofstream(folder + "/" + name) << text;
    return ReadDocuments(folder + "/" + name);
  };
  EXPECT_EQ(write("a.jsonl", "{\"a\": 1}\n\n{\"a\": 2}\n")->size(), 2u);
  EXPECT_EQ(write("a.json", "[{\"a\": 1}]")->size(), 1u);
  EXPECT_EQ(write("b.json", "{\"data\": [{\"a\": 1}, {}]}")->size(), 2u);
  const auto bad = write("c.jsonl", "{\"a\": 1}\n[1]\n");
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("c.jsonl:2"));
  EXPECT_FALSE(write("d.jsonl", "").ok());
}

}  // namespace
}  // namespace capstan::evaluate
