// SPDX-License-Identifier: Apache-2.0
//
// What a run prints and leaves behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FreshFolder() { return NewTestFolder("run") + "/out"; }

std::set<std::string> TensorNames(const std::string& path) {
  std::set<std::string> names;
  const nlohmann::json header = SafetensorsHeader(path);
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") names.insert(name);
  }
  return names;
}

TEST(OutputTest, MetricsAndSummary) {
  const std::string folder = MustTrain(RunText().Ddp(2).Batch(2, 8));
  const Metrics metrics = ReadMetrics(folder);
  ASSERT_THAT(metrics.Values("step"), ElementsAre(1, 2, 3, 4, 5, 6));
  for (size_t i = 0; i < metrics.steps.size(); ++i) {
    const nlohmann::json& line = metrics.steps[i];
    // 8 sequences of 32 tokens.
    EXPECT_EQ(line["tokens"], (i + 1) * 8 * 32);
    EXPECT_EQ(line["trained_tokens"], (i + 1) * 8 * 31);
    EXPECT_EQ(line["padding"], 0.0);
    EXPECT_DOUBLE_EQ(line["lr"], 3e-3);
    EXPECT_GT(line["grad_norm"], 0.0);
    EXPECT_GT(line["step_seconds"], 0.0);
    EXPECT_NEAR(line["tokens_per_second"].get<double>() *
                    line["step_seconds"].get<double>(),
                8 * 32, 8.0);
  }
  EXPECT_LT(metrics.losses().back(), metrics.losses().front());
  EXPECT_FALSE(fs::is_empty(folder + "/tensorboard"));
  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  EXPECT_EQ(summary["status"], "completed");
  EXPECT_EQ(summary["steps"], 6);
  EXPECT_EQ(summary["tokens"], 6 * 8 * 32);
  EXPECT_EQ(summary["world_size"], 2);
  EXPECT_EQ(summary["strategy"], "capstan.ddp");
  EXPECT_EQ(summary["precision"], "capstan.fp32");
  EXPECT_EQ(summary["final_loss"], metrics.losses().back());
  EXPECT_TRUE(summary["eval_loss"].is_null());
  EXPECT_GT(summary["ready_seconds"], 0.0);
  EXPECT_LT(summary["ready_seconds"], 30.0);
  EXPECT_GT(summary["tokens_per_second"], 0.0);
  EXPECT_GT(summary["step_seconds_median"], 0.0);
  ASSERT_EQ(summary["peak_memory_bytes"].size(), 2);
  for (const nlohmann::json& bytes : summary["peak_memory_bytes"]) {
    EXPECT_GT(bytes, 10 << 20);
  }
}

TEST(OutputTest, BannerProgressSamplesAndTable) {
  const RunText run =
      RunText()
          .Set("objective",
               "[plugin/capstan.causal_lm.Config] { max_new_tokens: 8 }")
          .Ddp(2)
          .Batch(2, 8)
          .Train("log_every: 2 sample_prompts: {prompt:\"THE_CAPTAIN\"}")
          .Output(FreshFolder());
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* text :
       {"run", "capstan.ddp", "capstan.fp32", "2 x CPU", "before training",
        "after training", "THE_CAPTAIN", "completed"}) {
    EXPECT_THAT(result.out, HasSubstr(text));
  }
  EXPECT_THAT(result.out, HasSubstr(run.output()));
  // Not a terminal: no carriage returns, no colours.
  EXPECT_EQ(result.out.find('\r'), std::string::npos);
  EXPECT_EQ(result.out.find('\033'), std::string::npos);
}

TEST(OutputTest, SamplingDoesNotChangeTheRun) {
  const std::string plain = MustTrain(RunText());
  const std::string sampled = MustTrain(
      RunText()
          .Set("objective",
               "[plugin/capstan.causal_lm.Config] { max_new_tokens: 8 }")
          .Train("sample_prompts: {prompt:\"A\"}"));
  EXPECT_EQ(ReadMetrics(sampled).losses(), ReadMetrics(plain).losses());
}

TEST(OutputTest, EvaluationLines) {
  // 20 sequences, of which 4 are held back.
  const RunText run =
      RunText()
          .Set("train_data",
               TextData(CorpusPiece(20 * 32), 32, "validation_fraction: 0.2"))
          .Batch(2, 4)
          .Train("eval_every: 2 max_steps: 5");
  const std::string one = MustTrain(run);
  const std::vector<nlohmann::json> evals = ReadMetrics(one).evals;
  ASSERT_EQ(evals.size(), 3);
  EXPECT_EQ(evals[0]["step"], 2);
  EXPECT_EQ(evals[1]["step"], 4);
  EXPECT_EQ(evals[2]["step"], 5) << "once more at the end";
  EXPECT_EQ(ReadJson(one + "/summary.json")["eval_loss"],
            evals[2]["eval_loss"]);
  // On three ranks, which share four sequences unevenly.
  const std::string three =
      MustTrain(RunText(run).Ddp(3).Batch(1, 3).Train("max_steps: 2"));
  const std::string same =
      MustTrain(RunText(run).Single().Batch(3, 3).Train("max_steps: 2"));
  EXPECT_NEAR(ReadMetrics(three).evals.at(0)["eval_loss"],
              ReadMetrics(same).evals.at(0)["eval_loss"], 1e-5);
}

TEST(OutputTest, EvaluationDoesNotChangeTheRun) {
  const RunText run = RunText().Set(
      "train_data",
      TextData(CorpusPiece(100 * 32), 32, "validation_fraction: 0.2"));
  const std::string often = MustTrain(RunText(run).Train("eval_every: 1"));
  EXPECT_EQ(ReadMetrics(often).losses(), ReadMetrics(MustTrain(run)).losses());
}

TEST(OutputTest, KeepsTheLastCheckpoints) {
  const RunText run = RunText().Train("max_steps: 7 save_every: 2");
  EXPECT_THAT(CheckpointSteps(MustTrain(run)), ElementsAre(6, 7));
  EXPECT_THAT(
      CheckpointSteps(MustTrain(RunText(run).Train("keep_checkpoints: 3"))),
      ElementsAre(4, 6, 7));
}

TEST(OutputTest, FinalIsAHuggingFaceFolder) {
  const std::string golden = Runfile("tests/golden/testdata/llama");
  const std::string final_folder =
      MustTrain(RunText::Golden().Ddp(2).Batch(2, 8).Train("max_steps: 2")) +
      "/final";
  EXPECT_EQ(TensorNames(final_folder + "/model.safetensors"),
            TensorNames(golden + "/model.safetensors"));
  const nlohmann::json config = ReadJson(final_folder + "/config.json");
  const nlohmann::json golden_config = ReadJson(golden + "/config.json");
  for (const auto& [key, value] : golden_config.items()) {
    if (key == "transformers_version") continue;
    EXPECT_EQ(config.value(key, nlohmann::json()), value) << key;
  }
  EXPECT_EQ(ReadJson(final_folder + "/generation_config.json")["eos_token_id"],
            2);
  EXPECT_TRUE(ReadJson(final_folder + "/tokenizer.json").contains("model"));
  EXPECT_TRUE(fs::exists(final_folder + "/tokenizer_config.json"));
  // It is a model to start from.
  MustTrain(RunText().Set(
      "model", absl::StrCat("[plugin/capstan.llama.Config] { pretrained: \"",
                            final_folder, "\" }")));
}

TEST(OutputTest, FinalHasTheDtypeOfTheRun) {
  const std::string folder = MustTrain(RunText().Precision("bf16"));
  const nlohmann::json header =
      SafetensorsHeader(folder + "/final/model.safetensors");
  EXPECT_EQ(header["model.norm.weight"]["dtype"], "BF16");
  EXPECT_EQ(ReadJson(folder + "/final/config.json")["dtype"], "bfloat16");
}

TEST(OutputTest, WithoutOutputDirEachRunGetsAFolder) {
  TrainerOptions options;
  options.folder = NewTestFolder("workspace");
  WriteText(options.folder + "/WORKSPACE", "");
  const std::string config = RunText().Train("max_steps: 1").File();
  std::set<std::string> folders;
  for (int i = 1; i <= 2; ++i) {
    const TrainerResult result = RunTrainer({"--config=" + config}, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    const std::string file = options.folder + "/runs/run/latest";
    // Not a link: TensorBoard would show the run twice.
    ASSERT_TRUE(fs::is_regular_file(fs::symlink_status(file)));
    const fs::path latest = LatestRun(options.folder + "/runs/run");
    EXPECT_TRUE(fs::exists(latest / "final/model.safetensors"));
    folders.insert(fs::canonical(latest).string());
    EXPECT_EQ(folders.size(), i);
  }
  // What a user says for it, in commands and in configs.
  for (const char* path : {"runs/run/latest", "runs/run/latest/final"}) {
    const TrainerResult result =
        RunTrainer({"generate", absl::StrCat("--model=", path), "--prompt=a",
                    "--max_new_tokens=1"},
                   options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  const TrainerResult result = RunTrainer(
      {"--config=runs/run/latest/config.pbtxt", "--set", "output_dir=again"},
      options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(OutputTest, RunsAreTheSameEachTime) {
  const RunText run = RunText().Ddp(2).Batch(2, 8);
  const std::string one = MustTrain(run);
  for (const RunText& same : {run, RunText(run).Train("deterministic: true")}) {
    EXPECT_EQ(ReadMetrics(MustTrain(same)).losses(),
              ReadMetrics(MustTrain(same)).losses());
  }
  EXPECT_NE(ReadMetrics(one).losses(),
            ReadMetrics(MustTrain(RunText(run).Train("seed: 2"))).losses());
}

}  // namespace
}  // namespace capstan
