// SPDX-License-Identifier: Apache-2.0
//
// trainer eval: what a run says of its evaluation, without the run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

RunText SmallRun() {
  return RunText()
      .Set("train_data", TextData(CorpusPiece(8 << 10), 32,
                                  "validation_fraction: 0.25 shuffle: true"))
      .Train("max_steps: 6 eval_every: 3 save_every: 3");
}

nlohmann::json Eval(std::vector<std::string> args) {
  args.insert(args.begin(), "eval");
  args.push_back("--json");
  const TrainerResult result = RunTrainer(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json json =
      nlohmann::json::parse(result.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_TRUE(json.is_object()) << result.out;
  return json;
}

TEST(EvalTest, SaysWhatTheRunSaidAndWritesNothing) {
  const std::string folder = MustTrain(SmallRun());
  const Metrics metrics = ReadMetrics(folder);
  ASSERT_EQ(metrics.evals.size(), 2);
  const auto before = Snapshot(folder);
  const nlohmann::json last = Eval({"--model=" + folder});
  EXPECT_NEAR(last["eval_loss"], metrics.evals[1]["eval_loss"], 1e-6);
  EXPECT_NEAR(last["eval_perplexity"], std::exp(double{last["eval_loss"]}),
              1e-6);
  EXPECT_GT(last["eval_accuracy"], 0.0);
  EXPECT_LT(last["eval_accuracy"], 1.0);
  EXPECT_EQ(last["targets"], int64_t{last["samples"]} * 31);
  const nlohmann::json first =
      Eval({"--model=" + folder + "/checkpoints/step-00000003"});
  EXPECT_NEAR(first["eval_loss"], metrics.evals[0]["eval_loss"], 1e-6);
  EXPECT_EQ(Snapshot(folder), before);
}

TEST(EvalTest, OnOtherDataAllOfIt) {
  const std::string folder = MustTrain(SmallRun());
  const std::string other = CorpusPiece(40 * 32);
  const nlohmann::json json = Eval({"--model=" + folder, "--data=" + other});
  EXPECT_EQ(json["samples"], 40);
  EXPECT_EQ(json["data"], other);
  const nlohmann::json some =
      Eval({"--model=" + folder, "--data=" + other, "--set",
            "eval_data.sequence_length=16", "--loss_only", "--max_batches=2",
            "--batch_size=3"});
  EXPECT_EQ(some["samples"], 6);
  EXPECT_EQ(some["targets"], 6 * 15);
  EXPECT_FALSE(some.contains("eval_accuracy"));
}

TEST(EvalTest, WritesWhereItIsTold) {
  const std::string folder = MustTrain(SmallRun());
  const std::string output = NewTestFolder("eval") + "/made";
  const std::vector<std::string> args = {"eval", "--model=" + folder,
                                         "--output=" + output};
  const TrainerResult result = RunTrainer(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("eval_perplexity"));
  EXPECT_NEAR(ReadJson(output + "/eval.json")["eval_loss"],
              ReadJson(folder + "/summary.json")["eval_loss"], 1e-6);
  const auto before = Snapshot(output);
  ExpectOneError(RunTrainer(args), {"--output", "already holds"});
  EXPECT_EQ(Snapshot(output), before);
  // Nor into the run, whose results have the same names.
  const auto run = Snapshot(folder);
  ExpectOneError(
      RunTrainer({"eval", "--model=" + folder, "--output=" + folder}),
      {"--output", "already holds"});
  EXPECT_EQ(Snapshot(folder), run);
}

// What another tool calls `latest` in a model's own folder is not a run.
TEST(EvalTest, AModelsFolderIsItself) {
  const std::string folder = MustTrain(SmallRun());
  const std::string model = CopyFolder(folder + "/final", "deepspeed");
  std::filesystem::create_directory(model + "/global_step10");
  WriteText(model + "/latest", "global_step10");
  // Away from its run it doesn't know where the data was.
  EXPECT_GT(
      Eval({"--model=" + model, "--data=" + CorpusPiece(40 * 32)})["eval_loss"],
      0.0);
}

// A folder that no run of the trainer has made doesn't say what it reads.
TEST(EvalTest, AFolderWithoutARunNeedsAReader) {
  const std::string folder = MustTrain(SmallRun());
  const std::string model = CopyFolder(folder + "/final", "plain");
  std::filesystem::remove(model + "/capstan.json");
  const std::string data = CorpusPiece(40 * 32);
  ExpectOneError(RunTrainer({"eval", "--model=" + model}),
                 {"eval_data=PACKAGE", "--config"});
  const nlohmann::json by_set =
      Eval({"--model=" + model, "--data=" + data, "--set",
            "eval_data=capstan.text", "--set", "eval_data.sequence_length=32"});
  const nlohmann::json by_config =
      Eval({"--model=" + model, "--data=" + data,
            "--config=" + RunText(SmallRun()).File()});
  EXPECT_NEAR(by_set["eval_loss"], by_config["eval_loss"], 1e-6);
}

// Tasks, asked of a model of bytes.
class TaskEvalTest : public ::testing::Test {
 protected:
  static nlohmann::json Rows(int first, int count) {
    nlohmann::json rows = nlohmann::json::array();
    for (int i = first; i < first + count; ++i) {
      rows.push_back({{"text", absl::StrCat("a", i)},
                      {"choices", {"b", "longer", "c"}},
                      {"answer", i % 3}});
    }
    return rows;
  }
  static std::string Task(const std::string& more) {
    const std::string folder = NewTestFolder("task");
    WriteText(folder + "/rows.json", Rows(0, 12).dump());
    return WriteText(folder + "/small.yaml",
                     absl::StrCat("task: small\ndataset_kwargs: {data_files: "
                                  "rows.json}\ndoc_to_text: \"{{text}}:\"\n",
                                  more));
  }
  const std::string folder_ = MustTrain(SmallRun());
};

constexpr char kChoiceTask[] =
    "output_type: multiple_choice\ndoc_to_target: answer\n"
    "doc_to_choice: choices\n";

TEST_F(TaskEvalTest, BatchesAndRanksChangeNothing) {
  const std::string task = Task(kChoiceTask);
  const std::vector<std::string> args = {"--model=" + folder_, "--task=" + task,
                                         "--num_fewshot=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), args.begin(), args.end());
    const nlohmann::json json = Eval(more);
    return json["tasks"]["small"];
  };
  const nlohmann::json alone = with({"--batch_size=1"});
  EXPECT_EQ(alone["samples"], 12);
  EXPECT_EQ(alone["num_fewshot"], 1);
  EXPECT_GE(alone["acc"], 0.0);
  EXPECT_GT(alone["acc_stderr"], 0.0);
  EXPECT_TRUE(alone.contains("acc_norm"));
  EXPECT_EQ(with({"--batch_size=5"}), alone);
  EXPECT_EQ(with({"--batch_size=12"}), alone);
}

TEST_F(TaskEvalTest, SamplesSayWhatWasScored) {
  const std::string output = NewTestFolder("task_eval") + "/made";
  const TrainerResult result =
      RunTrainer({"eval", "--model=" + folder_, "--task=" + Task(kChoiceTask),
                  "--output=" + output});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("acc_norm"));
  const std::string samples = ReadText(output + "/samples_small.jsonl");
  const nlohmann::json first =
      nlohmann::json::parse(samples.substr(0, samples.find('\n')));
  EXPECT_EQ(first["context"], "a0:");
  ASSERT_EQ(first["answers"].size(), 3u);
  EXPECT_EQ(first["answers"][1]["text"], " longer");
  EXPECT_LT(first["answers"][1]["log_likelihood"], 0.0);
  EXPECT_EQ(ReadJson(output + "/eval.json")["tasks"]["small"]["samples"], 12);
}

TEST_F(TaskEvalTest, GroupsSumUpTheirTasks) {
  const std::string folder = NewTestFolder("task_group");
  for (const char* name : {"one", "two"}) {
    WriteText(absl::StrCat(folder, "/", name, ".yaml"),
              absl::StrCat("task: ", name, "\ndoc_to_text: \"{{text}}:\"\n",
                           kChoiceTask));
  }
  WriteText(folder + "/both.yaml",
            "group: both\ntask: [one, two]\n"
            "aggregate_metric_list: {metric: acc}\n");
  const std::string data = NewTestFolder("task_rows");
  WriteText(data + "/one.json", Rows(0, 4).dump());
  const std::vector<std::string> args = {"--model=" + folder_,
                                         "--task=" + folder + "/both.yaml",
                                         "--data=" + data};
  std::vector<std::string> missing = args;
  missing.insert(missing.begin(), "eval");
  ExpectOneError(RunTrainer(missing), {"--data", "two.jsonl"});
  WriteText(data + "/two.json", Rows(4, 8).dump());
  const nlohmann::json json = Eval(args);
  const double one = json["tasks"]["one"]["acc"];
  const double two = json["tasks"]["two"]["acc"];
  EXPECT_EQ(json["groups"]["both"]["samples"], 12);
  EXPECT_NEAR(json["groups"]["both"]["acc"], (4 * one + 8 * two) / 12, 1e-12);
  EXPECT_EQ(Eval({"--model=" + folder_, "--task=" + folder,
                  "--data=" + data})["groups"],
            json["groups"]);
}

TEST_F(TaskEvalTest, GeneratesUntil) {
  const std::string task = Task(
      "output_type: generate_until\ndoc_to_target: text\n"
      "generation_kwargs: {until: [\"e\", \" \"], max_gen_toks: 9}\n");
  const nlohmann::json alone =
      Eval({"--model=" + folder_, "--task=" + task, "--batch_size=1"});
  EXPECT_EQ(alone["tasks"]["small"]["exact_match"], 0.0);
  const nlohmann::json together =
      Eval({"--model=" + folder_, "--task=" + task, "--batch_size=7"});
  EXPECT_EQ(together["tasks"], alone["tasks"]);
}

// A LLaDA reads all of a text, which has to fit into its 64 positions.
TEST(EvalTest, TasksOfALlada) {
  const std::string corpus = CorpusPiece(4 << 10);
  const std::string model = MustTrain(
      RunText()
          .Set("model",
               "[plugin/capstan.llada.Config] { vocab_size: 128 d_model: 32 "
               "mlp_hidden_size: 88 n_layers: 1 n_heads: 4 "
               "max_sequence_length: 64 }")
          .Set("objective",
               "[plugin/capstan.masked_diffusion.Config] { block_length: 4 }")
          .Set("train_data",
               absl::StrCat("[plugin/capstan.llada_windows.Config] { path: \"",
                            corpus, "\" sequence_length: 32 }"))
          .Train("max_steps: 1"));
  const auto numbers = [&](const std::string& task) {
    const std::string folder = NewTestFolder("llada_task");
    const nlohmann::json rows = {
        {{"text", ReadText(corpus).substr(0, 150) + "e"},
         {"choices", {"", " e"}},
         {"answer", 0}}};
    WriteText(folder + "/rows.json", rows.dump());
    const std::string file = WriteText(
        folder + "/task.yaml",
        "task: small\ndataset_kwargs: {data_files: rows.json}\n" + task);
    return Eval({"--model=" + model, "--task=" + file,
                 "--bound_samples=2"})["tasks"]["small"];
  };
  // An answer without a token is certain, and what the model would write.
  const nlohmann::json choices = numbers(
      "output_type: multiple_choice\ndoc_to_text: text\ndoc_to_target: "
      "answer\ndoc_to_choice: choices\ntarget_delimiter: \"\"\nmetric_list: "
      "[{metric: acc}, {metric: exact_match}]\n");
  EXPECT_EQ(choices["acc"], 1.0);
  EXPECT_EQ(choices["exact_match"], 1.0);
  EXPECT_GT(numbers("output_type: loglikelihood_rolling\ndoc_to_text: "
                    "\"\"\ndoc_to_target: text\n")["byte_perplexity"],
            1.0);
}

TEST_F(TaskEvalTest, MistakesAreOneSentence) {
  const std::string model = "--model=" + folder_;
  ExpectOneError(RunTrainer({"eval", model, "--chat"}), {"--chat", "--task"});
  ExpectOneError(RunTrainer({"eval", model, "--bound_samples=2"}),
                 {"--bound_samples", "--task"});
  ExpectOneError(RunTrainer({"eval", model, "--generate=3"}),
                 {"--generate", "trained"});
  const std::string task = "--task=" + Task(kChoiceTask);
  ExpectOneError(RunTrainer({"eval", model, task, "--loss_only"}),
                 {"--loss_only", "--task"});
  ExpectOneError(RunTrainer({"eval", model, task, "--num_fewshot=12"}),
                 {"num_fewshot", "only 11"});
  ExpectOneError(
      RunTrainer({"eval", model, "--task=" + Task("output_type: nonsense\n")}),
      {"small.yaml", "nonsense"});
  ExpectOneError(RunTrainer({"eval", model, "--task=nowhere.yaml"}),
                 {"nowhere.yaml"});
  ExpectOneError(RunTrainer({"eval", model, task, "--chat"}),
                 {"--chat: the model's tokenizer has no chat template",
                  "leave it out", "[command/flag]"});
  const std::string lost =
      WriteText(NewTestFolder("lost") + "/lost.yaml",
                absl::StrCat("task: lost\ndoc_to_text: text\n", kChoiceTask,
                             "dataset_kwargs: {data_files: missing.jsonl}\n"));
  ExpectOneError(RunTrainer({"eval", model, "--task=" + lost}),
                 {"lost.yaml: the rows of the task lost can't be read",
                  "missing.jsonl", "[path/missing]"});
}

TEST(EvalTest, MistakesAreOneSentence) {
  const std::string folder = MustTrain(
      RunText().Set("train_data", TextData(CorpusPiece(8 << 10), 32)));
  ExpectOneError(RunTrainer({"eval", "--model=" + folder}),
                 {"holds nothing back", "--data=FILE"});
  ExpectOneError(
      RunTrainer({"eval", "--model=" + folder, "--data=nowhere.txt"}),
      {"--data=nowhere.txt", "no such file"});
  ExpectOneError(RunTrainer({"eval", "--model=" + folder + "/nothing"}),
                 {"no such folder"});
}

}  // namespace
}  // namespace capstan
