// SPDX-License-Identifier: Apache-2.0
//
// What evaluations in training measure besides eval_data: further sets, and
// tasks; and what the best is found by.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/without_times.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kChoices[] =
    "output_type: multiple_choice\ndoc_to_target: answer\n"
    "doc_to_choice: choices\n";
constexpr char kWrites[] =
    "output_type: generate_until\ndoc_to_target: text\n"
    "generation_kwargs: {until: [\" \"], max_gen_toks: 9}\n";
constexpr char kLikelihood[] =
    "output_type: loglikelihood\ndoc_to_target: text\n";

std::string Task(const std::string& name, const std::string& more) {
  nlohmann::json rows = nlohmann::json::array();
  for (int i = 0; i < 11; ++i) {
    rows.push_back({{"text", absl::StrCat("the ", i, "th of them")},
                    {"choices", {"the", "of a king", "zqx"}},
                    {"answer", i % 3}});
  }
  const std::string folder = NewTestFolder(name);
  WriteText(folder + "/rows.json", rows.dump());
  return WriteText(absl::StrCat(folder, "/", name, ".yaml"),
                   absl::StrCat("task: ", name,
                                "\ndataset_kwargs: {data_files: rows.json}\n",
                                "doc_to_text: \"{{text}}:\"\n", more));
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", text, "\"");
}

// Without eval_data; with the set "code".
RunText SmallRun(const std::string& tasks = "") {
  RunText run = RunText()
                    .Set("eval_sets",
                         absl::StrCat("name: \"code\" data { ",
                                      TextData(CorpusPiece(37 * 32), 32), " }"))
                    .Train(
                        "eval_every: 2 save_every: 2 keep_checkpoints: 9 "
                        "deterministic: true");
  if (!tasks.empty()) run.Set("eval_tasks", tasks);
  return run;
}

TEST(EvaluationsTest, TheSameWhateverTheStrategy) {
  const std::string choices = Task("choices", kChoices);
  const std::string likely = Task("likely", kLikelihood);
  const std::string tasks =
      absl::StrCat("files: ", Quoted(choices), " files: ", Quoted(likely),
                   " files: ", Quoted(Task("writes", kWrites)),
                   " max_samples: 9 num_fewshot: 1");
  const std::string alone = MustTrain(
      SmallRun(tasks).Set("eval_data", TextData(CorpusPiece(20 * 32), 32)));
  const Metrics metrics = ReadMetrics(alone);
  ASSERT_EQ(metrics.evals.size(), 3);
  for (const char* name :
       {"eval_code_loss", "eval_choices_acc", "eval_choices_acc_norm",
        "eval_likely_perplexity", "eval_writes_exact_match"}) {
    ASSERT_TRUE(metrics.evals[0].contains(name)) << name << metrics.evals[0];
  }
  EXPECT_NE(metrics.evals[0]["eval_code_loss"], metrics.evals[0]["eval_loss"]);
  EXPECT_LT(metrics.evals[2]["eval_code_loss"],
            metrics.evals[0]["eval_code_loss"]);
  const nlohmann::json summary = ReadJson(alone + "/summary.json");
  EXPECT_EQ(summary["eval_choices_acc"], metrics.evals[2]["eval_choices_acc"]);

  // What `trainer eval` says of the same weights.
  const TrainerResult result = RunTrainer(
      {"eval", "--model=" + alone, "--task=" + choices, "--task=" + likely,
       "--max_samples=9", "--num_fewshot=1", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json told = nlohmann::json::parse(result.out)["tasks"];
  EXPECT_EQ(told["choices"]["acc"], metrics.evals[2]["eval_choices_acc"]);
  EXPECT_NEAR(told["likely"]["perplexity"],
              metrics.evals[2]["eval_likely_perplexity"],
              1e-4 * told["likely"]["perplexity"].get<double>());

  for (const bool sharded : {false, true}) {
    RunText run =
        SmallRun(tasks).Set("eval_data", TextData(CorpusPiece(20 * 32), 32));
    const std::string folder = MustTrain(sharded ? run.Fsdp(2) : run.Ddp(2));
    EXPECT_EQ(WithoutTimes(ReadMetrics(folder).evals),
              WithoutTimes(metrics.evals))
        << sharded;
  }
}

TEST(EvaluationsTest, AChatNeedsATokenizerWithATemplate) {
  const std::string config =
      SmallRun(absl::StrCat("files: ", Quoted(Task("choices", kChoices)),
                            " chat: true"))
          .File();
  ExpectOneError(RunTrainer({"check", "--config=" + config}),
                 {"eval_tasks.chat: the model's tokenizer has no chat template",
                  "leave it out", "[config/value]"});
}

TEST(EvaluationsTest, TheBestIsByAnyMetric) {
  const std::string tasks =
      absl::StrCat("files: ", Quoted(Task("choices", kChoices)));
  const std::string folder = MustTrain(SmallRun(tasks).Ddp(2).Train(
      "keep_best: true best_metric: \"eval_choices_acc\""));
  double best = -1.0;
  for (const nlohmann::json& line : ReadMetrics(folder).others) {
    best = std::max<double>(best, line["eval_choices_acc"]);
  }
  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  EXPECT_EQ(summary["best_eval_choices_acc"], best);
  EXPECT_TRUE(summary["eval_loss"].is_null());
  // Nothing of this machine's folders is published.
  EXPECT_THAT(ReadText(folder + "/final/capstan.json"),
              AllOf(HasSubstr("choices.yaml"), Not(HasSubstr("/choices.yaml")),
                    HasSubstr("eval_sets")));
}

TEST(EvaluationsTest, MistakesAreToldBeforeTraining) {
  const auto check = [](RunText run) {
    return RunTrainer({"check", "--config=" + run.File()});
  };
  const auto set = [](const std::string& name) {
    return absl::StrCat("name: ", Quoted(name), " data { ",
                        TextData(CorpusPiece(10 * 32), 32), " }");
  };
  ExpectOneError(check(SmallRun().Set("eval_sets", set("a b"))),
                 {"eval_sets.name", "a b", "letters"});
  ExpectOneError(
      check(SmallRun().Set(
          "eval_sets", absl::StrCat(set("a"), " } eval_sets { ", set("a")))),
      {"two sets are called a"});
  ExpectOneError(check(SmallRun("files: \"nothing.yaml\"")),
                 {"eval_tasks", "nothing.yaml"});
  ExpectOneError(
      check(SmallRun("files: [\"" + Task("odd", "output_type: odd\n") + "\"]")),
      {"eval_tasks", "odd.yaml"});
  // There is no eval_data.
  ExpectOneError(check(SmallRun().Train("keep_best: true")),
                 {"best_metric", "eval_loss", "eval_code_loss"});
  ExpectOneError(check(SmallRun().Train("best_metric: \"code_loss\"")),
                 {"best_metric", "code_loss", "eval_code_loss"});
  for (const char* metric :
       // Misspelt; of no set; what only `trainer eval` measures; of a task.
       {"eval_code_los", "eval_perplexity", "eval_code_accuracy",
        "eval_choices_f1"}) {
    const auto checked = check(
        SmallRun(absl::StrCat("files: ", Quoted(Task("choices", kChoices))))
            .Train(absl::StrCat("best_metric: ", Quoted(metric))));
    ExpectOneError(checked, {"best_metric", metric, "eval_code_perplexity",
                             "eval_choices_acc"});
    EXPECT_THAT(checked.err, Not(HasSubstr("eval_code_accuracy, ")));
  }
  // An objective could measure it, which the first evaluation tells.
  MustTrain(SmallRun().Train("best_metric: \"eval_code_novelty\""));
  ExpectOneError(check(SmallRun("files: " + Quoted(Task("code", kLikelihood)))),
                 {"eval_tasks", "two evaluations would be called"});
}

TEST(EvaluationsTest, NamesHaveWhatTheLossGivesAndFilters) {
  const std::string task =
      Task("filtered", absl::StrCat(kWrites,
                                    "filter_list:\n- name: strict\n  filter:\n"
                                    "  - {function: take_first}\n"));
  const std::string folder = MustTrain(
      SmallRun("files: " + Quoted(task))
          .Train("keep_best: true best_metric: \"eval_code_perplexity\""));
  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  EXPECT_NEAR(summary["eval_code_perplexity"],
              std::exp(summary["eval_code_loss"].get<double>()), 1e-6);
  EXPECT_TRUE(summary.contains("eval_filtered_exact_match_strict"));
  // The lowest is the best.
  double lowest = HUGE_VAL;
  for (const nlohmann::json& line : ReadMetrics(folder).others) {
    lowest = std::min<double>(lowest, line["eval_code_perplexity"]);
  }
  EXPECT_EQ(summary["best_eval_code_perplexity"], lowest);
  const RunText run =
      SmallRun("files: " + Quoted(task))
          .Train("best_metric: \"eval_filtered_exact_match_strict\"");
  EXPECT_EQ(RunTrainer({"check", "--config=" + run.File()}).exit_code, 0);
}

}  // namespace
}  // namespace capstan
