// SPDX-License-Identifier: Apache-2.0
//
// `trainer llada` and `trainer llada-data`: the flags of LLaDA's Python
// scripts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
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

std::string Npy() { return Runfile("tests/golden/testdata/llada_npy"); }

std::string Plugin(const std::string& package, const std::string& fields) {
  return absl::StrCat("[plugin/capstan.", package, ".Config] { ", fields, " }");
}

// A LLaDA of a few thousand parameters, from scratch on the original's files.
RunText FromScratch() {
  return RunText()
      .Set("model", Plugin("llada",
                           "vocab_size: 71 d_model: 32 mlp_hidden_size: 88 "
                           "n_layers: 2 n_heads: 4 max_sequence_length: 64"))
      .Set("objective", Plugin("masked_diffusion", ""))
      .Set("train_data",
           Plugin("llada_windows", absl::StrCat("folder: \"", Npy(), "\"")));
}

// Its folder, made once.
std::string Model() {
  static const auto* const folder =
      new std::string(MustTrain(FromScratch()) + "/final");
  return *folder;
}

TEST(LladaTest, FlagsLandInTheConfig) {
  const std::string save = NewTestFolder("save") + "/here";
  const std::vector<std::string> args = {"llada",
                                         "--data_dir=" + Npy(),
                                         "--model_name=" + Model(),
                                         "--batch_size=3",
                                         "--epochs=7",
                                         "--learning_rate=2.5e-5",
                                         "--save_dir=" + save,
                                         "--no_fp16",
                                         "--print_config"};
  TrainerResult result = RunTrainer(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("output_dir: \"" + save + "\""),
            HasSubstr("pretrained: \"" + Model() + "\""),
            HasSubstr("folder: \"" + Npy() + "\""),
            HasSubstr("loss: MASKED_MEAN"), HasSubstr("capstan.fp32.Config"),
            HasSubstr("learning_rate: 2.5e-05"),
            HasSubstr("weight_decay: 0.01"), HasSubstr("warmup_ratio: 0.1")));
  // 36 windows, 3 on each of 2 ranks.
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("micro_batch_size: 3"),
                    HasSubstr("max_epochs: 7"), HasSubstr("eval_every: 6"),
                    HasSubstr("save_every: 30"), HasSubstr("max_grad_norm: 1"),
                    HasSubstr("keep_best: true"), HasSubstr("processes: 2")));
  EXPECT_FALSE(fs::exists(save));

  // The script's own defaults, but for fp16 where the device is slow in it.
  result = RunTrainer({"llada", "--data_dir=" + Npy(),
                       "--model_name=" + Model(), "--print_config"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out,
      AllOf(HasSubstr("/checkpoints_pretrained\""),
            HasSubstr("capstan.auto.Config"), HasSubstr("learning_rate: 1e-05"),
            HasSubstr("micro_batch_size: 1"), HasSubstr("max_epochs: 5"),
            HasSubstr("eval_every: 18")));

  result = RunTrainer({"llada", "--data_dir=" + Npy(),
                       "--model_name=" + Model(), "--fp16", "--print_config"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("capstan.fp16.Config"));

  result =
      RunTrainer({"llada", "--data_dir=" + Npy(), "--model_name=" + Model(),
                  "--fp16", "--no_fp16", "--print_config"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("ERROR: --no_fp16: is the contrary of"));
}

TEST(LladaTest, TheEnvironmentsRanksAreTheRunsRanks) {
  TrainerOptions options;
  options.environment = {{"RANK", "1"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "4"},
                         {"MASTER_ADDR", "127.0.0.1"},
                         {"MASTER_PORT", "29555"}};
  const TrainerResult result =
      RunTrainer({"llada", "--data_dir=" + Npy(), "--model_name=" + Model(),
                  "--print_config"},
                 options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("eval_every: 9"), Not(HasSubstr("processes"))));
}

TEST(LladaTest, TrainsAndTheBestIsAFolderAgain) {
  const std::string save = NewTestFolder("llada_save") + "/run";
  TrainerResult result =
      RunTrainer({"llada", "--data_dir=" + Npy(), "--model_name=" + Model(),
                  "--batch_size=4", "--epochs=2", "--learning_rate=1e-3",
                  "--no_fp16", "--save_dir=" + save});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Metrics metrics = ReadMetrics(save);
  // 36 windows twice, 8 a step; an evaluation after each epoch.
  EXPECT_EQ(metrics.steps.size(), 9u);
  ASSERT_EQ(metrics.evals.size(), 2u);
  EXPECT_LT(metrics.evals.back()["eval_loss"],
            metrics.evals.front()["eval_loss"]);
  // The last step's learning rate is that of a schedule as long as the run.
  EXPECT_LT(metrics.steps.back()["lr"], 1e-4);
  EXPECT_EQ(ReadJson(save + "/final/config.json")["mask_token_id"], 70);
  // And goes on from there, with the printed config, too.
  result =
      RunTrainer({"llada", "--data_dir=" + Npy(),
                  "--model_name=" + save + "/final", "--epochs=1", "--no_fp16",
                  "--save_dir=" + save + "2", "--print_config"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string config = WriteText(save + ".pbtxt", result.out);
  result = RunTrainer({"train", "--config=" + config, "--set",
                       "train.max_epochs=0", "--set", "train.max_steps=1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(LladaTest, ResumesAndTakesOverrides) {
  const std::string save = NewTestFolder("llada_resume") + "/run";
  std::vector<std::string> args = {"llada",
                                   "--data_dir=" + Npy(),
                                   "--model_name=" + Model(),
                                   "--no_fp16",
                                   "--batch_size=4",
                                   "--epochs=2",
                                   "--save_dir=" + save};
  // Broken off after 3 of the 9 steps, which the schedule counts on.
  std::vector<std::string> first = args;
  first.insert(first.end(),
               {"--set", "train.max_steps=3", "--set", "schedule.total_steps=9",
                "--set", "strategy=capstan.ddp"});
  TrainerResult result = RunTrainer(first);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(ReadMetrics(save).steps.size(), 3u);
  ExpectOneError(RunTrainer(args), {save, "already holds a run"});
  args.push_back("--resume");
  result = RunTrainer(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Metrics metrics = ReadMetrics(save);
  EXPECT_EQ(metrics.steps.size(), 9u);
  EXPECT_THAT(result.out, HasSubstr("resumed at step 3"));
  // As if unbroken.
  const std::string unbroken = NewTestFolder("llada_unbroken") + "/run";
  std::replace(args.begin(), args.end(), "--save_dir=" + save,
               "--save_dir=" + unbroken);
  args.back() = "--set=strategy=capstan.ddp";
  result = RunTrainer(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(ReadMetrics(unbroken).losses().front(), metrics.losses().front());
  EXPECT_NEAR(ReadMetrics(unbroken).losses().back(), metrics.losses().back(),
              1e-5);
}

TEST(LladaTest, WhatCantBeIsSaid) {
  const std::string data = "--data_dir=" + Npy();
  ExpectOneError(RunTrainer({"llada", data}),
                 {"--model_name", "GSAI-ML/LLaDA-8B-Instruct",
                  "hf download GSAI-ML/LLaDA-8B-Instruct --local-dir "
                  "LLaDA-8B-Instruct"});
  const TrainerResult missing =
      RunTrainer({"llada", data, "--model_name=/no/model"});
  ExpectOneError(missing, {"--model_name", "/no/model is not a folder"});
  EXPECT_THAT(missing.err, Not(HasSubstr("download")));
  ExpectOneError(RunTrainer({"llada", "--data_dir=/nowhere"}),
                 {"--data_dir", "/nowhere is not a folder"});
  ExpectOneError(
      RunTrainer({"llada", data, "--model_name=" + Model(), "--epochs=0"}),
      {"--epochs", "must be at least 1"});
  ExpectOneError(RunTrainer({"llada", data, "--model_name=" + Model(),
                             "--batch_size=4611686018427387904"}),
                 {"--batch_size", "must be from 1 to 2147483648"});
}

// The original feeds ids of characters to a vocabulary of sub-words.
TEST(LladaTest, CharactersAreNoTokensOfAnotherVocabulary) {
  const std::string model = CopyFolder(Model(), "subwords");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(Runfile(absl::StrCat("datasets/samples/tokenizer/", name)),
                  model + "/" + name, fs::copy_options::overwrite_existing);
  }
  const TrainerResult result =
      RunTrainer({"llada", "--data_dir=" + Npy(), "--model_name=" + model});
  ExpectOneError(result,
                 {"--data_dir", "ids of characters",
                  "trainer llada-data --text=", "--tokenizer=" + model});

  // What it says to do works.
  const std::string output = NewTestFolder("subword_data");
  const TrainerResult written = RunTrainer(
      {"llada-data", "--text=" + Runfile("tests/testdata/corpus.txt"),
       "--tokenizer=" + model, "--output=" + output, "--sequence_length=64"});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  const TrainerResult printed =
      RunTrainer({"llada", "--data_dir=" + output, "--model_name=" + model,
                  "--print_config"});
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
}

TEST(LladaDataTest, WritesWhatTheReaderReads) {
  const std::string output = NewTestFolder("data") + "/made";
  const std::vector<std::string> args = {
      "llada-data", "--text=" + Runfile("tests/testdata/corpus.txt"),
      "--output=" + output, "--sequence_length=256"};
  const TrainerResult result = RunTrainer(args);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json metadata = ReadJson(output + "/metadata.json");
  EXPECT_THAT(result.out,
              HasSubstr(absl::StrCat(metadata["val_samples"].get<int>(),
                                     " to validate, of 256 characters; "
                                     "vocabulary 71")));
  EXPECT_EQ(metadata["vocab_size"], 71);
  EXPECT_EQ(metadata["mask_token"], 70);
  EXPECT_EQ(metadata["total_tokens"], 241969);
  const nlohmann::json vocab = ReadJson(output + "/vocab.json");
  EXPECT_EQ(vocab["char_to_id"], ReadJson(Npy() + "/vocab.json")["char_to_id"]);
  EXPECT_EQ(vocab["id_to_char"], ReadJson(Npy() + "/vocab.json")["id_to_char"]);
  const TrainerResult checked = RunTrainer(
      {"check", "--config=" +
                    RunText(FromScratch())
                        .Set("train_data", Plugin("llada_windows",
                                                  "folder: \"" + output + "\""))
                        .Set("model", Plugin("llada",
                                             "vocab_size: 71 d_model: 32 "
                                             "mlp_hidden_size: 88 n_layers: 2 "
                                             "n_heads: 4 "
                                             "max_sequence_length: 256"))
                        .File()});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  ExpectOneError(
      RunTrainer({"llada-data", "--text=/nowhere.txt", "--output=" + output}),
      {"/nowhere.txt can't be opened"});
  ExpectOneError(
      RunTrainer({"llada-data", args[1], args[2], "--validation_fraction=0"}),
      {"--validation_fraction"});
}

}  // namespace
}  // namespace capstan
