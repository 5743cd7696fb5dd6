// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/requests.h"

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

void SetFormat(Task* task, const Json& text, const Json& target,
               const Json& choice = nullptr) {
  task->format.text = text;
  task->format.target = target;
  task->format.choice = choice;
  task->fewshot.format = task->format;
  task->fewshot.first = true;
}

Task Arc() {
  Task task;
  task.path = "arc.yaml";
  SetFormat(&task, "Question: {{question}}\nAnswer:",
            "{{choices.label.index(answerKey)}}", "{{choices.text}}");
  return task;
}

TEST(RequestsTest, ChoicesFollowTheContext) {
  const auto requests = MakeRequests(Arc(), Rows(kArc), {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  const Request& first = (*requests)[0];
  ASSERT_EQ(first.questions.size(), 1u);
  EXPECT_EQ(first.questions[0].context, "Question: Q1\nAnswer:");
  EXPECT_THAT(first.questions[0].continuations, ElementsAre(" é", " two"));
  EXPECT_THAT(first.choices, ElementsAre("é", "two"));
  EXPECT_THAT(first.gold, ElementsAre(1));
  EXPECT_THAT((*requests)[2].questions[0].continuations,
              ElementsAre(" it's", " \"z\""));
}

TEST(RequestsTest, ExamplesAreOthers) {
  Task task = Arc();
  task.num_fewshot = 1;
  task.description = "D.\n";
  const auto requests = MakeRequests(task, Rows(kArc), Rows(kArc));
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].questions[0].context,
            "D.\nQuestion: Q2\nAnswer: x\n\nQuestion: Q1\nAnswer:");
  EXPECT_EQ((*requests)[1].questions[0].context,
            "D.\nQuestion: Q1\nAnswer: two\n\nQuestion: Q2\nAnswer:");
  // Also behind its twins.
  std::vector<std::string> twins(4, kArc[0]);
  twins.push_back(kArc[2]);
  const auto behind = MakeRequests(task, Rows({kArc[0]}), Rows(twins));
  ASSERT_TRUE(behind.ok()) << behind.status();
  EXPECT_THAT((*behind)[0].questions[0].context, HasSubstr("Question: Q3"));
  task.num_fewshot = 3;
  const auto too_many = MakeRequests(task, Rows(kArc), Rows(kArc));
  ASSERT_FALSE(too_many.ok());
  EXPECT_THAT(std::string(too_many.status().message()),
              HasSubstr("only 2 other rows"));
}

TEST(RequestsTest, ColumnsAndConstants) {
  Task task;
  task.path = "t.yaml";
  SetFormat(&task, "ctx", "label", {"no", "yes"});
  const auto requests = MakeRequests(
      task,
      Rows({R"({"ctx": "c{{d", "label": 1})", R"({"ctx": "e", "label": true})",
            R"({"ctx": "f", "label": "no"})"}),
      {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].questions[0].context, "c{{d");
  EXPECT_THAT((*requests)[0].gold, ElementsAre(1));
  EXPECT_THAT((*requests)[1].gold, ElementsAre(1));
  EXPECT_THAT((*requests)[2].gold, ElementsAre(0));
}

TEST(RequestsTest, LikelihoodAndGeneration) {
  Task task;
  task.path = "t.yaml";
  task.output = TaskOutput::kLogLikelihood;
  SetFormat(&task, "{{text.split(' ')[:-1]|join(' ')}}",
            "{{' '+text.split(' ')[-1]}}");
  const std::vector<Document> rows = Rows({R"({"text": "a b c"})"});
  auto requests = MakeRequests(task, rows, {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].questions[0].context, "a b");
  EXPECT_THAT((*requests)[0].questions[0].continuations, ElementsAre(" c"));
  task.output = TaskOutput::kGenerateUntil;
  SetFormat(&task, "{{text}}:\n", "{{ [text, 'd'] }}");
  requests = MakeRequests(task, rows, {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].questions[0].context, "a b c:\n");
  EXPECT_TRUE((*requests)[0].questions[0].continuations.empty());
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
  task.format.target = Json(7);
  const auto beyond = MakeRequests(task, Rows(kArc), {});
  ASSERT_FALSE(beyond.ok());
  EXPECT_THAT(std::string(beyond.status().message()),
              HasSubstr("none of the 2 choices"));
}

// Contexts of lm_eval 0.4.13 for the same task and rows.
TEST(RequestsTest, DrawsExamplesAsTheHarness) {
  Task task;
  task.path = "t.yaml";
  SetFormat(&task, "{{n}}", "{{n}}!");
  task.output = TaskOutput::kGenerateUntil;
  task.fewshot.first = false;
  task.num_fewshot = 2;
  std::vector<std::string> rows;
  for (int i = 0; i < 8; ++i) {
    rows.push_back("{\"n\": \"" + std::to_string(i) + "\"}");
  }
  const auto requests = MakeRequests(task, Rows(rows), {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  std::vector<std::string> contexts;
  for (const Request& request : *requests) {
    contexts.push_back(request.questions[0].context);
  }
  EXPECT_THAT(contexts, ElementsAre("7 7!\n\n6 6!\n\n0", "6 6!\n\n4 4!\n\n1",
                                    "0 0!\n\n5 5!\n\n2", "1 1!\n\n0 0!\n\n3",
                                    "3 3!\n\n0 0!\n\n4", "0 0!\n\n2 2!\n\n5",
                                    "7 7!\n\n4 4!\n\n6", "2 2!\n\n0 0!\n\n7"));
}

TEST(RequestsTest, ExamplesOfTheTaskItself) {
  Task task = Arc();
  task.num_fewshot = 1;
  task.fewshot.samples = {Json::parse(kArc[2])};
  const auto own = MakeRequests(task, Rows({kArc[0]}), {});
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ((*own)[0].questions[0].context,
            "Question: Q3\nAnswer: \"z\"\n\nQuestion: Q1\nAnswer:");
  // A file that is named goes before them.
  const auto other = MakeRequests(task, Rows({kArc[0]}), Rows({kArc[1]}));
  EXPECT_THAT((*other)[0].questions[0].context, HasSubstr("Question: Q2"));
  task.num_fewshot = 2;
  EXPECT_FALSE(MakeRequests(task, Rows({kArc[0]}), {}).ok());
}

TEST(RequestsTest, ChoicesWithinTheContext) {
  Task task;
  task.path = "t.yaml";
  SetFormat(&task, "{{right}}", "{{rest}}", "{{[a, b]}}");
  task.num_fewshot = 1;
  const auto requests = MakeRequests(
      task,
      Rows({R"({"right": 1, "a": "A", "b": "B", "rest": "end."})",
            R"({"right": 0, "a": "C", "b": "D", "rest": "stop."})"}),
      {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  const Request& first = (*requests)[0];
  ASSERT_EQ(first.questions.size(), 2u);
  EXPECT_EQ(first.questions[0].context, "C stop.\n\nA");
  EXPECT_EQ(first.questions[1].context, "C stop.\n\nB");
  EXPECT_THAT(first.questions[1].continuations, ElementsAre(" end."));
  EXPECT_THAT(first.gold, ElementsAre(1));
}

TEST(RequestsTest, PrefixesBeginTheAnswer) {
  Task task = Arc();
  task.format.prefix = Json("It is");
  task.fewshot.format = task.format;
  task.num_fewshot = 1;
  const auto requests = MakeRequests(task, Rows(kArc), {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].questions[0].context,
            "Question: Q2\nAnswer: It is x\n\nQuestion: Q1\nAnswer: It is");
}

TEST(RequestsTest, ALabelThatIsNoChoiceIsTold) {
  const auto requests =
      MakeRequests(Arc(),
                   Rows({R"({"question": "Q", "choices": {"text": ["x", "y"],)"
                         R"( "label": ["A", "B"]}, "answerKey": "C"})"}),
                   {});
  ASSERT_FALSE(requests.ok());
  EXPECT_THAT(std::string(requests.status().message()),
              HasSubstr("doc_to_target: line 1: index: not found: the row's "
                        "label isn't among the choices"));
}

// Blocks keep the spaces and line ends around them, unlike chat templates'.
TEST(RequestsTest, TemplatesAreTheHarnesss) {
  Task task;
  task.path = "t.yaml";
  task.output = TaskOutput::kGenerateUntil;
  SetFormat(&task, "a\n  {% if x %}\n{{x}}\n{% endif %}\n{# c #}\nb\n",
            "{{x}}");
  const auto requests = MakeRequests(task, Rows({R"({"x": "X"})"}), {});
  ASSERT_TRUE(requests.ok()) << requests.status();
  EXPECT_EQ((*requests)[0].questions[0].context, "a\n  \nX\n\n\nb\n");
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
