// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "inference/evaluate/task_keys.h"

namespace capstan::evaluate {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TaskTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  absl::StatusOr<Task> Load(const std::string& text) {
    absl::StatusOr<TaskKeys> keys = TaskKeys::Read(Write("task.yaml", text));
    return keys.ok() ? MakeTask(*std::move(keys)) : keys.status();
  }
  std::string Error(const std::string& text) {
    const absl::StatusOr<Task> task = Load(text);
    EXPECT_FALSE(task.ok()) << text;
    return task.ok() ? "" : std::string(task.status().message());
  }

  const std::string folder_ = [] {
    std::string folder = std::string(std::getenv("TEST_TMPDIR") != nullptr
                                         ? std::getenv("TEST_TMPDIR")
                                         : "/tmp") +
                         "/task_test";
    std::filesystem::create_directories(folder);
    return folder;
  }();
};

constexpr char kChoice[] = R"(
tag: some
task: shapes
dataset_path: json
dataset_kwargs: {data_files: {test: rows.jsonl, train: more.jsonl}}
test_split: test
training_split: train
output_type: multiple_choice
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: 3
doc_to_choice: ["1", b]
num_fewshot: 2
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata: {version: 1.0}
)";

TEST_F(TaskTest, ReadsChoices) {
  const absl::StatusOr<Task> task = Load(kChoice);
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->name, "shapes");
  EXPECT_EQ(task->output, TaskOutput::kMultipleChoice);
  EXPECT_EQ(task->format.text.value, "Question: {{question}}\nAnswer:");
  EXPECT_EQ(task->format.target.value, Json(3));
  EXPECT_EQ(task->format.choice.value, Json({"1", "b"}));
  EXPECT_EQ(task->num_fewshot, 2);
  ASSERT_EQ(task->metrics.size(), 1u);
  EXPECT_EQ(task->metrics[0].name, "acc");
  EXPECT_EQ(task->metrics[0].higher_is_better, true);
  EXPECT_EQ(task->docs_file, folder_ + "/rows.jsonl");
  EXPECT_EQ(task->fewshot_file, folder_ + "/more.jsonl");
}

TEST_F(TaskTest, ReadsGenerationAndFilters) {
  const absl::StatusOr<Task> task = Load(R"yaml(
output_type: generate_until
doc_to_text: question
doc_to_target: "3"
generation_kwargs: {until: ["Q:", "\n\n"], do_sample: false, temperature: 0.0, max_gen_toks: 32}
metric_list:
  - {metric: exact_match, ignore_case: true, regexes_to_ignore: [",", "\\$"]}
  - metric: rouge_l
filter_list:
  - name: strict
    filter:
      - {function: regex, regex_pattern: "#### (\\d+)"}
      - function: take_first
  - name: last
    filter:
      - {function: regex, regex_pattern: "\\d+", group_select: -1, fallback: none}
      - function: remove_whitespace
)yaml");
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->name, "task");
  EXPECT_EQ(task->format.target.value, Json("3"));
  EXPECT_THAT(task->until, ElementsAre("Q:", "\n\n"));
  EXPECT_EQ(task->max_tokens, 32);
  EXPECT_FALSE(task->sample);
  ASSERT_EQ(task->filters.size(), 2u);
  const auto filtered = [&](size_t filter, const char* text) {
    return task->filters[filter].Apply({text}, Json()).value()[0];
  };
  EXPECT_EQ(filtered(0, "1 #### 2 #### 3"), "2");
  EXPECT_EQ(filtered(0, "1"), "[invalid]");
  EXPECT_EQ(filtered(1, " 1 and 22 "), "22");
  EXPECT_EQ(filtered(1, "x"), "none");
  EXPECT_TRUE(ExactMatch("$1,0", "10", task->metrics[0].exact).value());
}

TEST_F(TaskTest, OwnKeysGoBeforeIncludedOnes) {
  Write("base.yaml", kChoice);
  const absl::StatusOr<Task> task =
      Load("include: base.yaml\ntask: mine\ndescription: \"D\\n\\n\"\n");
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->name, "mine");
  EXPECT_EQ(task->description, "D\n\n");
  EXPECT_EQ(task->num_fewshot, 2);
}

constexpr char kWriting[] =
    "output_type: generate_until\ndoc_to_text: a\ndoc_to_target: b\n";

// What lm_eval's filters give.
TEST_F(TaskTest, FiltersOfSeveralTexts) {
  const absl::StatusOr<Task> task = Load(absl::StrCat(kWriting, R"yaml(
repeats: 3
filter_list:
  - name: vote
    filter:
      - {function: regex, regex_pattern: "(\\d+)"}
      - {function: majority_vote}
      - {function: take_first}
  - name: two
    filter: [{function: take_first_k, k: 2}]
  - name: letters
    filter:
      - function: multi_choice_regex
        ignore_case: true
        ignore_punctuation: true
        regex_pattern: "\\(([A-Z])\\)"
  - name: mapped
    filter: [{function: map, mapping_dict: {a: 1}, default_value: 0}]
)yaml"));
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_EQ(task->repeats, 3);
  const auto apply = [&](size_t filter, std::vector<std::string> texts) {
    return *task->filters[filter].Apply(
        std::move(texts), Json{{"choices", {"Guilty", "Guilty of Romance"}}});
  };
  EXPECT_THAT(apply(0, {"7", "x 8", "8 9"}), ElementsAre("8"));
  EXPECT_THAT(apply(0, {"7", "8", "9"}), ElementsAre("7"));
  EXPECT_THAT(apply(1, {"a", "b", "c"}), ElementsAre("a", "b"));
  EXPECT_THAT(apply(2, {"so (B)", "It is guilty, of romance!", "I say: A",
                        "who knows"}),
              ElementsAre("B", "(B)", "(A)", "[invalid]"));
  EXPECT_THAT(apply(3, {"a", "b"}), ElementsAre("1", "0"));
  EXPECT_FALSE(task->filters[2].Apply({"a"}, Json::object()).ok());
  const Json many = {{"choices", Json(27, "x")}};
  EXPECT_THAT(
      std::string(task->filters[2].Apply({"a"}, many).status().message()),
      HasSubstr("27 of them"));
}

TEST_F(TaskTest, ReadsExamplesOfItsOwn) {
  const absl::StatusOr<Task> task = Load(absl::StrCat(kWriting, R"yaml(
num_fewshot: 2
fewshot_config:
  sampler: first_n
  samples: [{a: x, n: 3}, {a: "4", b: [1, 2.5, true]}]
  doc_to_text: "{{a}}?"
)yaml"));
  ASSERT_TRUE(task.ok()) << task.status();
  EXPECT_TRUE(task->fewshot.first);
  EXPECT_EQ(task->fewshot.format.text.value, "{{a}}?");
  ASSERT_EQ(task->fewshot.samples.size(), 2u);
  EXPECT_EQ(task->fewshot.samples[0], (Json{{"a", "x"}, {"n", 3}}));
  EXPECT_EQ(task->fewshot.samples[1],
            (Json{{"a", "4"}, {"b", {1, 2.5, true}}}));
  EXPECT_THAT(Error(absl::StrCat(kWriting,
                                 "fewshot_config: {split: a, "
                                 "shuffle: b}\n")),
              HasSubstr("fewshot_config.shuffle"));
}

TEST_F(TaskTest, MistakesNameTheKey) {
  const std::string head =
      "output_type: multiple_choice\ndoc_to_text: a\ndoc_to_target: b\n"
      "doc_to_choice: c\n";
  EXPECT_THAT(Error(head + "process_docs: !function utils.f\n"),
              HasSubstr("process_docs is the Python function utils.f, but "
                        "there is no"));
  Write("known.py", "def f(doc):\n  return doc['a']\n");
  EXPECT_THAT(Error("output_type: multiple_choice\ndoc_to_text: !function "
                    "known.f\ndoc_to_target: 0\ndoc_to_choice: [a]\n"),
              HasSubstr("doc_to_text is the Python function known.f, whose "
                        "code"));
  EXPECT_THAT(Error(head + "process_docs: !function known.g\n"),
              HasSubstr("known.py doesn't define"));
  EXPECT_THAT(Error("class: !function known.f\ntask: a\n"),
              HasSubstr("class names a task that is written in Python"));
  EXPECT_THAT(Error(head + "nonsense: 1\n"), HasSubstr("nonsense"));
  EXPECT_THAT(Error(head + "task: \"\"\n"),
              HasSubstr("task.yaml: task is empty"));
  EXPECT_THAT(Error(head + "task: \"a\\nb\"\n"),
              HasSubstr("task is \"a\\nb\", and has a control character"));
  EXPECT_THAT(Error(head + "metric_list: [{metric: bleu}]\n"),
              HasSubstr("bleu"));
  EXPECT_THAT(Error(head + "metric_list: [{metric: exact_match, aggregation: "
                           "matthews_corrcoef}]\n"),
              HasSubstr("exact_match, which gives numbers, by "
                        "matthews_corrcoef"));
  EXPECT_THAT(Error(head + "metric_list: [{metric: f1, aggregation: mean}]\n"),
              HasSubstr("gives pairs [gold, predicted], by mean"));
  EXPECT_THAT(Error("output_type: other\ndoc_to_target: a\n"),
              HasSubstr("other"));
  EXPECT_THAT(Error(head + "num_fewshot: many\n"),
              HasSubstr("num_fewshot in line 5"));
  EXPECT_THAT(Error("a: [b\n"), HasSubstr("isn't YAML"));
  EXPECT_THAT(Error("include: task.yaml\n"), HasSubstr("includes itself"));
  EXPECT_THAT(Error(head + "a: &a [*a, x]\n"), HasSubstr("nested too deeply"));
  EXPECT_THAT(Error(head + "a: &a {? *a : 1}\n"),
              HasSubstr("nested too deeply"));
  std::string aliases = "a0: &a0 [x]\n";
  for (int i = 1; i < 12; ++i) {
    absl::StrAppend(&aliases, "a", i, ": &a", i, " [");
    for (int j = 0; j < 9; ++j) absl::StrAppend(&aliases, "*a", i - 1, ", ");
    aliases += "x]\n";
  }
  EXPECT_THAT(Error(head + aliases), HasSubstr("aliases stand for more"));
  EXPECT_THAT(Error(head + "filter_list: [{name: a, filter: [{function: "
                           "regex, regex_pattern: \"(\"}]}]\n"),
              HasSubstr("regular expression"));
}

}  // namespace
}  // namespace capstan::evaluate
