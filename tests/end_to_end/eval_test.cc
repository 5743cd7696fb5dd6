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
  EXPECT_NEAR(last["loss"], metrics.evals[1]["eval_loss"], 1e-6);
  EXPECT_NEAR(last["perplexity"], std::exp(double{last["loss"]}), 1e-6);
  EXPECT_GT(last["accuracy"], 0.0);
  EXPECT_LT(last["accuracy"], 1.0);
  EXPECT_EQ(last["targets"], int64_t{last["samples"]} * 31);
  const nlohmann::json first =
      Eval({"--model=" + folder + "/checkpoints/step-00000003"});
  EXPECT_NEAR(first["loss"], metrics.evals[0]["eval_loss"], 1e-6);
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
  EXPECT_FALSE(some.contains("accuracy"));
}

TEST(EvalTest, WritesWhereItIsTold) {
  const std::string folder = MustTrain(SmallRun());
  const std::string output = NewTestFolder("eval") + "/made";
  const std::vector<std::string> args = {"eval", "--model=" + folder,
                                         "--output=" + output};
  const TrainerResult result = RunTrainer(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("perplexity"));
  EXPECT_NEAR(ReadJson(output + "/eval.json")["loss"],
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
  EXPECT_GT(Eval({"--model=" + model})["loss"], 0.0);
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
  EXPECT_NEAR(by_set["loss"], by_config["loss"], 1e-6);
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
