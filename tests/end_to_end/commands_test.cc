// SPDX-License-Identifier: Apache-2.0
//
// The commands beside train.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kPromptLength = 8;

std::string GoldenFolder() { return Runfile("tests/golden/testdata/llama"); }

// What transformers makes of the prompt, which comes first.
std::vector<int> GoldenGreedy() {
  return ReadJson(GoldenFolder() + "/golden.json")["greedy"];
}

std::string GreedyIds(const std::string& model) {
  std::vector<int> ids = GoldenGreedy();
  const int fresh = static_cast<int>(ids.size()) - kPromptLength;
  ids.resize(kPromptLength);
  const TrainerResult result =
      RunTrainer({"generate", "--model=" + model,
                  "--prompt_ids=" + absl::StrJoin(ids, ","),
                  absl::StrCat("--max_new_tokens=", fresh), "--greedy"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.out;
}

TEST(GenerateTest, GreedyFromAHuggingFaceFolderIsTransformers) {
  EXPECT_EQ(GreedyIds(GoldenFolder()),
            absl::StrJoin(GoldenGreedy(), ",") + "\n");
}

// A step of learning rate nearly zero: the weights are the golden ones.
TEST(GenerateTest, FromFinalACheckpointAndTheRunsFolder) {
  const std::string folder =
      MustTrain(RunText::Golden()
                    .Ddp(2)
                    .Batch(4, 8)
                    .Set("optimizer",
                         "[plugin/capstan.sgd.Config] { learning_rate: 1e-12 }")
                    .Train("max_steps: 1"));
  const std::string expected = absl::StrJoin(GoldenGreedy(), ",") + "\n";
  for (const char* model : {"/final", "/checkpoints/step-00000001", ""}) {
    EXPECT_EQ(GreedyIds(folder + model), expected) << model;
  }
  fs::remove_all(folder + "/final");
  EXPECT_EQ(GreedyIds(folder), expected);
}

TEST(GenerateTest, TextFromFinalAndFromACheckpoint) {
  const std::string folder = MustTrain(RunText().Train("max_steps: 30"));
  std::string texts[2];
  const char* models[2] = {"/final", "/checkpoints/step-00000030"};
  for (int i = 0; i < 2; ++i) {
    const TrainerResult result =
        RunTrainer({"generate", "--model=" + folder + models[i],
                    "--prompt=THE CAPTAIN", "--max_new_tokens=20", "--greedy"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    texts[i] = result.out;
    EXPECT_THAT(texts[i], StartsWith("THE CAPTAIN"));
    // Bytes that it has learnt, and the end of the line.
    EXPECT_EQ(texts[i].size(), 11 + 20 + 1) << texts[i];
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(LsTest, ARunWithoutCheckpointsIsOne) {
  const std::string folder =
      MustTrain(RunText().Train("max_steps: 1 save_every: 0"));
  fs::remove_all(folder + "/checkpoints");
  ExpectOneError(RunTrainer({"ls", folder}),
                 {"has no checkpoints: its run has saved none"});
  ExpectOneError(RunTrainer({"ls", NewTestFolder("empty")}),
                 {"has no checkpoints: name a run's folder"});
}

TEST(GenerateTest, TheSeedDecidesWhatIsSampled) {
  const auto sample = [](const std::string& seed) {
    const TrainerResult result =
        RunTrainer({"generate", "--model=" + GoldenFolder(),
                    "--prompt_ids=1,2,3", "--max_new_tokens=10",
                    "--seed=" + seed, "--temperature=1.5", "--top_k=50"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string one = sample("1");
  EXPECT_EQ(one, sample("1"));
  EXPECT_NE(one, sample("2"));
}

TEST(GenerateTest, BadRequests) {
  const std::string model = "--model=" + GoldenFolder();
  ExpectOneError(RunTrainer({"generate", model, "--prompt=Hello"}),
                 {GoldenFolder(), "no tokenizer", "--prompt_ids"});
  ExpectOneError(RunTrainer({"generate", model}),
                 {"--prompt=TEXT", "--prompt_ids"});
  ExpectOneError(RunTrainer({"generate", model, "--prompt_ids=1,512"}),
                 {"512"});
  ExpectOneError(RunTrainer({"generate", "--model=nowhere", "--prompt_ids=1"}),
                 {"--model=nowhere", "no such folder"});
  ExpectOneError(RunTrainer({"generate", "--model=HuggingFaceTB/SmolLM2-135M",
                             "--prompt_ids=1"}),
                 {"hf download HuggingFaceTB/SmolLM2-135M"});
  const std::string empty = NewTestFolder("empty");
  ExpectOneError(RunTrainer({"generate", "--model=" + empty, "--prompt_ids=1"}),
                 {empty, "config.json"});
}

TEST(CheckTest, SaysWhatWouldRun) {
  const RunText run =
      RunText().Ddp(2).Batch(2, 8).Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"check", "--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out,
              AllOf(StartsWith("OK: run"), HasSubstr("capstan.ddp"),
                    HasSubstr("global batch 8 = micro 2 x 2 ranks x "
                              "accumulation 2"),
                    HasSubstr("6 steps")));
  EXPECT_FALSE(fs::exists(run.output())) << "check must not make anything";
}

// A folder laid out as the repository is, with what some configs expect of
// their user: a model's folder and rows.
std::string WorkspaceWithAModel() {
  const std::string workspace = NewTestFolder("workspace");
  for (const char* folder : {"configs", "datasets/samples/tokenizer"}) {
    fs::create_directories(fs::path(workspace) / folder);
    for (const auto& entry : fs::directory_iterator(Runfile(folder))) {
      fs::copy_file(entry.path(),
                    fs::path(workspace) / folder / entry.path().filename());
    }
  }
  const TrainerResult made = RunTrainer(
      {"--config=" + workspace + "/configs/sft_quickstart.pbtxt", "--set",
       "output_dir=" + workspace + "/run", "--set", "model.hidden_size=32",
       "--set", "model.num_hidden_layers=1", "--set",
       "model.max_position_embeddings=8192", "--set", "train.max_steps=1",
       "--set", "schedule.warmup_steps=0", "--set", "train.eval_batches=1",
       "--set", "train.sample_max_new_tokens=1"});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  fs::create_directories(workspace + "/models");
  fs::rename(workspace + "/run/final", workspace + "/models/SmolLM2-135M");
  for (const char* name :
       {"gemma-3-27b-it", "Llama-3.1-8B-Instruct", "Qwen3-0.6B", "Qwen3-4B"}) {
    fs::copy(workspace + "/models/SmolLM2-135M", workspace + "/models/" + name);
  }
  // What grpo_quickstart.pbtxt goes on from.
  fs::create_directories(workspace + "/runs/grpo_sft_quickstart/latest");
  fs::copy(workspace + "/models/SmolLM2-135M",
           workspace + "/runs/grpo_sft_quickstart/latest/final");
  fs::create_directories(workspace + "/data");
  std::string questions;
  for (int i = 0; i < 2000; ++i) {
    absl::StrAppend(&questions, "{\"question\": \"What is ", i,
                    " + 1?\", \"answer\": \"#### ", i + 1, "\"}\n");
  }
  WriteText(workspace + "/data/gsm8k.jsonl", questions);
  fs::copy_file(Runfile("datasets/samples/chats_eval.jsonl"),
                workspace + "/data/chats.jsonl");
  fs::copy_file(Runfile("tests/testdata/corpus.txt"),
                workspace + "/data/text.txt");
  std::vector<std::string> args = {"--config=" + workspace +
                                   "/configs/llada_quickstart.pbtxt"};
  for (const std::string& change :
       {"output_dir=" + workspace + "/llada",
        "train_data.path=" + workspace + "/data/text.txt",
        "train_data.tokenizer.folder=" + workspace +
            "/datasets/samples/tokenizer",
        std::string("model.d_model=32"), std::string("model.n_layers=1"),
        std::string("model.vocab_size=4100"),
        std::string("model.max_sequence_length=4096"),
        std::string("train.max_steps=1"), std::string("train.eval_batches=1"),
        std::string("schedule.warmup_steps=0"),
        std::string("objective.max_new_tokens=1"),
        std::string("objective.block_length=1")}) {
    args.insert(args.end(), {"--set", change});
  }
  const TrainerResult llada = RunTrainer(args);
  EXPECT_EQ(llada.exit_code, 0) << llada.err;
  fs::rename(workspace + "/llada/final",
             workspace + "/models/LLaDA-8B-Instruct");
  fs::create_directories(workspace + "/runs/darkroom");
  for (const char* name :
       {"quickstart.hdf5", "history_darkroom_PPO_alg-seed42.hdf5"}) {
    fs::copy_file(Runfile("plugins/algorithm_distillation/darkroom/testdata/"
                          "history_small.hdf5"),
                  workspace + "/runs/darkroom/" + name);
  }
  return workspace;
}

TEST(CheckTest, EveryConfigThatComesWithTheTrainer) {
  const std::string workspace = WorkspaceWithAModel();
  int configs = 0;
  for (const auto& entry : fs::directory_iterator(workspace + "/configs")) {
    const std::string name = entry.path().filename().string();
    // Those of collect and compare are no runs.
    if (entry.path().extension() != ".pbtxt" ||
        absl::StartsWith(name, "collect_") ||
        absl::StartsWith(name, "compare_")) {
      continue;
    }
    ++configs;
    std::vector<std::string> args = {"check",
                                     "--config=" + entry.path().string()};
    if (absl::StartsWith(name, "ad_")) {
      // As far as the small histories go.
      args.insert(args.end(), {"--set", "train_data.steps=160", "--set",
                               "train_data.streams=3"});
    }
    if (absl::StartsWith(name, "qwen3_0.6b_grpo")) {
      // The sample tokenizer's template has no variables.
      args.insert(args.end(), {"--set", "train_data.chat_template_kwargs={}"});
    }
    const TrainerResult checked = RunTrainer(args);
    EXPECT_EQ(checked.exit_code, 0) << entry.path() << ": " << checked.err;
    EXPECT_THAT(checked.out, StartsWith("OK: "));
    args[0] = "plan";
    const TrainerResult planned = RunTrainer(args);
    EXPECT_EQ(planned.exit_code, 0) << entry.path() << ": " << planned.err;
  }
  EXPECT_GE(configs, 8);
}

TEST(CheckTest, ConfigsAreFoundInTheWorkspace) {
  TrainerOptions options;
  const std::string workspace = NewTestFolder("workspace");
  options.folder = workspace + "/deep/down";
  fs::create_directories(options.folder);
  fs::create_directories(workspace + "/configs");
  WriteText(workspace + "/WORKSPACE", "");
  WriteText(workspace + "/configs/mine.pbtxt", RunText().Text());
  TrainerOptions under_bazel;
  under_bazel.environment = {{"BUILD_WORKING_DIRECTORY", options.folder},
                             {"BUILD_WORKSPACE_DIRECTORY", workspace}};
  for (const TrainerOptions& each : {options, under_bazel}) {
    const TrainerResult result =
        RunTrainer({"check", "--config=mine.pbtxt"}, each);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, StartsWith("OK: mine"));
  }
}

TEST(CheckTest, PathsAreRelativeToTheConfigOrTheCaller) {
  const std::string folder = NewTestFolder("config");
  WriteText(folder + "/text.txt", std::string(1000, 'a'));
  WriteText(folder + "/run.pbtxt",
            RunText().Set("train_data", TextData("text.txt", 32)).Text());
  TrainerOptions options;
  options.folder = NewTestFolder("caller");
  WriteText(options.folder + "/other.txt", std::string(500, 'a'));
  const std::string config = "--config=" + folder + "/run.pbtxt";
  EXPECT_THAT(RunTrainer({"check", config}, options).out,
              HasSubstr("31 training samples"));
  EXPECT_THAT(
      RunTrainer({"check", config, "--set", "train_data.path=other.txt"},
                 options)
          .out,
      HasSubstr("15 training samples"));
}

TEST(PrintConfigTest, WhatIsPrintedIsAConfig) {
  const RunText run =
      RunText().Ddp(2, "bucket_cap_mib: 3").Output(NewTestFolder("o") + "/out");
  const TrainerResult printed =
      RunTrainer({"--config=" + run.File(), "--print_config", "--set",
                  "train.max_steps=3", "--set", "model.hidden_size=48"});
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_THAT(printed.out,
              AllOf(HasSubstr("max_steps: 3"), HasSubstr("hidden_size: 48"),
                    HasSubstr("bucket_cap_mib: 3"),
                    HasSubstr("[plugin/capstan.text.Config]")));
  EXPECT_FALSE(fs::exists(run.output()));
  const std::string copy =
      WriteText(NewTestFolder("copy") + "/copy.pbtxt", printed.out);
  const TrainerResult again =
      RunTrainer({"--config=" + copy, "--print_config"});
  EXPECT_EQ(again.out, printed.out);
  const TrainerResult trained = RunTrainer({"--config=" + copy});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(ReadMetrics(run.output()).steps.size(), 3);
}

TEST(PrintConfigTest, SeveralConfigsAndOverridesMerge) {
  const std::string other = WriteText(
      NewTestFolder("other") + "/other.pbtxt",
      "strategy { [plugin/capstan.ddp.Config] {} } train { max_steps: 9 }");
  const TrainerResult result =
      RunTrainer({"--config=" + RunText().File(), "--config=" + other, "--set",
                  "precision=capstan.bf16", "--print_config"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("capstan.ddp"), HasSubstr("capstan.bf16"),
                    HasSubstr("max_steps: 9"), HasSubstr("seed: 1")));
}

TEST(PluginsTest, ListsEachWithItsCategory) {
  const TrainerResult result = RunTrainer({"plugins"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* name :
       {"strategy ", "capstan.single.Config", "capstan.ddp.Config",
        "precision ", "capstan.fp32.Config", "capstan.bf16.Config",
        "capstan.fp16.Config", "capstan.auto.Config", "dataset reader ",
        "capstan.text.Config", "model ", "capstan.llama.Config", "objective ",
        "capstan.causal_lm.Config", "optimizer ", "capstan.adamw.Config",
        "capstan.sgd.Config", "libtorch=2.11.0", "\n  sdk=1."}) {
    EXPECT_THAT(result.out, HasSubstr(name));
  }
}

TEST(EnvTest, SaysWhatABugReportNeeds) {
  const TrainerResult result = RunTrainer({"env"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* name :
       {"system ", "kernel ", "cpu ", "cores ", "memory ", "gpus ", "libtorch ",
        "nccl ", "compiler ", "protobuf ", "OMP_NUM_THREADS"}) {
    EXPECT_THAT(result.out, HasSubstr(name));
  }
  EXPECT_THAT(result.out, HasSubstr("2.11.0"));
}

TEST(EnvTest, IdleThreadsSleepUnlessAskedOtherwise) {
  {
    // Others that use more than an eighth of the cores.
    std::atomic<bool> end{false};
    std::vector<std::thread> others;
    for (unsigned i = 0; i < std::thread::hardware_concurrency() / 8 + 2; ++i) {
      others.emplace_back([&end] {
        while (!end) continue;
      });
    }
    EXPECT_THAT(RunTrainer({"env"}).out,
                ContainsRegex("GOMP_SPINCOUNT +600\n"));
    end = true;
    for (std::thread& other : others) other.join();
  }
  TrainerOptions spins;
  spins.environment["GOMP_SPINCOUNT"] = "7";
  EXPECT_THAT(RunTrainer({"env"}, spins).out,
              ContainsRegex("GOMP_SPINCOUNT +7\n"));
  TrainerOptions policy;
  policy.environment["OMP_WAIT_POLICY"] = "active";
  EXPECT_THAT(RunTrainer({"env"}, policy).out,
              Not(HasSubstr("GOMP_SPINCOUNT")));
}

TEST(PluginPathTest, MustBeAFolder) {
  const std::string config = "--config=" + RunText().File();
  for (const char* command : {"train", "check", "plugins", "generate"}) {
    const std::vector<std::string> args =
        command == std::string("plugins")
            ? std::vector<std::string>{command}
            : std::vector<std::string>{
                  command,
                  command == std::string("generate") ? "--model=x" : config};
    for (const std::string& path :
         {std::string("/no/plugins"), Runfile("tests/testdata/corpus.txt")}) {
      std::vector<std::string> with_path = args;
      with_path.push_back("--plugin_path=" + path);
      ExpectOneError(RunTrainer(with_path),
                     {"--plugin_path", path + " is not a folder"});
    }
  }
}

TEST(CommandHelpTest, OfEachCommand) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--help"}, "--config"},
      {{"train", "--help"}, "--set"},
      {{"check", "--help"}, "--config"},
      {{"generate", "--help"}, "--max_new_tokens"},
      {{"plugins", "--help"}, "--plugin_path"},
      {{"env", "--help"}, "env"}};
  for (const auto& [args, word] : cases) {
    const TrainerResult result = RunTrainer(args);
    EXPECT_EQ(result.exit_code, 0) << absl::StrJoin(args, " ") << result.err;
    EXPECT_THAT(result.out, HasSubstr(word)) << absl::StrJoin(args, " ");
    EXPECT_EQ(result.err, "");
  }
  EXPECT_THAT(
      RunTrainer({"--help"}).out,
      AllOf(HasSubstr("train"), HasSubstr("check"), HasSubstr("generate"),
            HasSubstr("plugins"), HasSubstr("env")));
}

TEST(CommandHelpTest, WrongCommandLines) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{
           {"trian"}, {"--confg=x"}, {"generate"}, {"env", "--config=x"}}) {
    const TrainerResult result = RunTrainer(args);
    EXPECT_EQ(result.exit_code, 2) << absl::StrJoin(args, " ");
    EXPECT_NE(result.err, "");
  }
  ExpectOneError(RunTrainer({}), {"--config"});
}

}  // namespace
}  // namespace capstan
