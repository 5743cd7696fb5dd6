// SPDX-License-Identifier: Apache-2.0
//
// What a run does besides its steps: epochs, texts by the model, its folder for
// others, the upload.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<nlohmann::json> Lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(ReadText(path));
  for (std::string line; std::getline(text, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
  }
  return lines;
}

TEST(EpochsTest, StepsFollowFromTheData) {
  // 40 sequences, 8 a step; slots hold train's own fields alone.
  RunText run;
  run.Set("train_data", TextData(CorpusPiece(40 * 32), 32, "shuffle: true"))
      .Set("schedule", "kind: LINEAR warmup_ratio: 0.2");
  const std::string path = run.Output(NewTestFolder("run") + "/out").File();
  const TrainerResult result =
      RunTrainer({"--config=" + path, "--set", "train.max_steps=0", "--set",
                  "train.max_epochs=1.5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> lr = ReadMetrics(run.output()).Values("lr");
  ASSERT_EQ(lr.size(), 8);
  EXPECT_NEAR(lr[1], 0.5 * 3e-3, 1e-12);  // 2 steps of warm-up
  EXPECT_NEAR(lr[2], 3e-3, 1e-12);
  EXPECT_THAT(RunTrainer({"check", "--config=" + path, "--set",
                          "train.max_steps=0", "--set", "train.max_epochs=3"})
                  .out,
              HasSubstr("15 steps"));
  // Epochs take the place of steps by themselves, too.
  EXPECT_THAT(
      RunTrainer({"check", "--config=" + path, "--set", "train.max_epochs=3"})
          .out,
      HasSubstr("15 steps"));
  ExpectOneError(
      RunTrainer({"check", "--config=" + path, "--set", "train.max_steps=0"}),
      {"train.max_steps", "max_epochs"});
}

TEST(GenerationsTest, BeforeDuringAndAfter) {
  RunText run;
  run.Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 32,
                                 "validation_fraction: 0.1"))
      .Ddp(2)
      .Train(
          "max_steps: 4 eval_every: 2 eval_batches: 1 "
          "sample_prompts: {prompt:\"THE\"} sample_max_new_tokens: 8")
      .Output(NewTestFolder("run") + "/out");
  const std::vector<std::string> args = {
      "--config=" + run.File(), "--set",
      "train.sample_prompts+={user: \"A B\"}"};
  const TrainerResult result = RunTrainer(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = Lines(run.output() + "/generations.jsonl");
  ASSERT_EQ(lines.size(), 6);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], 2 * static_cast<int>(i / 2));
    EXPECT_EQ(lines[i]["prompt"], i % 2 == 0 ? "THE" : "A B");
    EXPECT_TRUE(lines[i]["text"].is_string());
  }
  EXPECT_NE(lines[0]["text"], lines[4]["text"]);
  EXPECT_THAT(result.out, AllOf(HasSubstr("sample before training (step 0)"),
                                HasSubstr("sample after step 2 (step 2)"),
                                HasSubstr("sample after training (step 4)"),
                                HasSubstr("| after training\n")));
  // Texts change nothing, nor does a resumed run repeat them.
  RunText plain = run;
  plain.Output("").Train("sample_prompts: []");
  EXPECT_EQ(ReadMetrics(run.output()).losses(),
            ReadMetrics(MustTrain(plain)).losses());
  run.Train("resume: AUTO max_steps: 6");
  const TrainerResult again =
      RunTrainer({"--config=" + run.File(), "--set",
                  "train.sample_prompts+={user: \"A B\"}"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  const auto more = Lines(run.output() + "/generations.jsonl");
  ASSERT_EQ(more.size(), 8);
  EXPECT_EQ(more[7]["step"], 6);
  // What was before is from the first part.
  EXPECT_THAT(again.out, HasSubstr("before training"));
}

TEST(FinalTest, IsCompleteForAHub) {
  RunText run;
  run.Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 32,
                                 "validation_fraction: 0.1"))
      .Train("eval_every: 3 keep_best: true");
  const std::string folder = MustTrain(run);
  for (const char* name : {"model.safetensors", "config.json", "tokenizer.json",
                           "tokenizer_config.json", "README.md",
                           "loss_curve.svg", "capstan.json"}) {
    EXPECT_TRUE(fs::exists(folder + "/final/" + name)) << name;
  }
  const std::string card = ReadText(folder + "/final/README.md");
  EXPECT_THAT(
      card, AllOf(HasSubstr("---\nlibrary_name: transformers\n"),
                  HasSubstr("pipeline_tag: text-generation"),
                  HasSubstr("trained from scratch"),
                  HasSubstr("![Loss by step](loss_curve.svg)"),
                  HasSubstr("| steps | 6 |"), HasSubstr("best eval_loss"),
                  HasSubstr("learning_rate: 0.003"), HasSubstr("LibTorch 2.")));
  EXPECT_THAT(card, Not(HasSubstr("license")));
  // Nothing of this machine's folders.
  EXPECT_THAT(card, HasSubstr("path: \"corpus.txt\""));
  EXPECT_THAT(card, Not(HasSubstr("\"/")));
  EXPECT_THAT(ReadText(folder + "/final/loss_curve.svg"),
              AllOf(HasSubstr("<svg "), HasSubstr("evaluation loss")));
}

// A program `hf` that says what it is asked.
std::string FolderWithHf(int exit_code) {
  const std::string folder = NewTestFolder("bin");
  const std::string path = folder + "/hf";
  WriteText(path, absl::StrCat("#!/bin/sh\nfor word in \"$@\"; do echo "
                               "\"[$word]\" >> ",
                               folder, "/asked; done\nexit ", exit_code, "\n"));
  chmod(path.c_str(), 0755);
  return folder;
}

RunText Uploading() {
  return RunText()
      .Set("hub_upload", "repo: \"me/my model\" private: true")
      .Train("max_steps: 2")
      .Output(NewTestFolder("run") + "/out");
}

TEST(HubUploadTest, AsksHf) {
  const RunText run = Uploading().Ddp(2);
  const std::string bin = FolderWithHf(0);
  TrainerOptions options;
  options.environment["PATH"] = bin + ":/usr/bin:/bin";
  const TrainerResult result = RunTrainer({"--config=" + run.File()}, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(ReadText(bin + "/asked"),
            absl::StrCat("[upload]\n[me/my model]\n[", run.output(),
                         "/final]\n[.]\n[--private]\n"));
  EXPECT_THAT(result.out, HasSubstr("uploaded "));
}

TEST(HubUploadTest, SaysWhatItWouldDoWithoutHf) {
  const RunText run = Uploading();
  TrainerOptions options;
  options.environment["PATH"] = NewTestFolder("nothing");
  const TrainerResult result = RunTrainer({"--config=" + run.File()}, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("no program `hf` on PATH"),
            HasSubstr(absl::StrCat("hf upload 'me/my model' ", run.output(),
                                   "/final . --private"))));
}

TEST(HubUploadTest, AFailureIsTheRunsButTheFolderIsThere) {
  for (const bool ignores_children : {false, true}) {
    const RunText run = Uploading();
    TrainerOptions options;
    options.environment["PATH"] = FolderWithHf(3) + ":/usr/bin:/bin";
    options.ignores_children = ignores_children;
    const TrainerResult result =
        RunTrainer({"--config=" + run.File()}, options);
    EXPECT_EQ(result.exit_code, 1) << result.out;
    EXPECT_THAT(result.err, AllOf(HasSubstr("exit code 3"),
                                  HasSubstr("hf upload 'me/my model'")));
    EXPECT_TRUE(fs::exists(run.output() + "/final/model.safetensors"));
    EXPECT_EQ(ReadJson(run.output() + "/summary.json")["status"], "completed");
  }
}

// hf kills its parent, rank 0, the first time it is called.
TEST(HubUploadTest, ADeathInItsMidstDoesntLoseIt) {
  const RunText run =
      Uploading().Ddp(2).Set("launch", "processes: 2 max_restarts: 1");
  const std::string bin = NewTestFolder("bin");
  WriteText(bin + "/hf",
            absl::StrCat("#!/bin/sh\n[ -e ", bin, "/asked ] && exit 0\ntouch ",
                         bin, "/asked\nkill -9 $PPID\n"));
  chmod((bin + "/hf").c_str(), 0755);
  TrainerOptions options;
  options.environment["PATH"] = bin + ":/usr/bin:/bin";
  const std::vector<std::string> words = {"--config=" + run.File(), "--set",
                                          "train.resume=AUTO"};
  TrainerResult result = RunTrainer(words, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 0 was killed by signal 9"));
  EXPECT_THAT(result.out, HasSubstr("uploaded "));
  // It is done: once is enough.
  result = RunTrainer(words, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("is finished after 2 steps"),
                                Not(HasSubstr("uploaded "))));
}

TEST(AutomaticBatchTest, TakesWhatFitsAndChangesNoLoss) {
  RunText run;
  run.Ddp(2)
      .Set("batch", "micro_batch_size: AUTO global_batch_size: 8")
      .Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("8 = micro 4 x 2 ranks x accumulation 1"));
  EXPECT_THAT(result.out, HasSubstr("a trial step fits"));
  EXPECT_EQ(ReadMetrics(run.output()).losses(),
            ReadMetrics(MustTrain(RunText().Ddp(2).Batch(4, 8))).losses());
  const TrainerResult plan = RunTrainer({"plan", "--config=" + run.File()});
  EXPECT_THAT(plan.out, HasSubstr("4 (AUTO) x 32 tokens"));
  EXPECT_THAT(RunTrainer({"check", "--config=" + run.File(), "--set",
                          "batch.global_batch_size=0"})
                  .out,
              HasSubstr("global batch 16 = micro 8 x 2 ranks"));
}

}  // namespace
}  // namespace capstan
