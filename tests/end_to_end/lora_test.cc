// SPDX-License-Identifier: Apache-2.0
//
// Training an adapter, and what becomes of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/told_end.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Base() { return Runfile("tests/golden/testdata/llama"); }

// Trains an adapter of the golden model; 8 sequences a step.
RunText LoraRun() {
  return RunText::Golden()
      .Set("adapter",
           "lora { rank: 4 alpha: 16 target_modules: [\"q_proj\", "
           "\"down_proj\"] }")
      .Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }")
      .Batch(4, 8)
      .Train("max_steps: 6");
}

std::vector<double> Losses(const std::string& folder) {
  return ReadMetrics(folder).losses();
}

TEST(LoraTest, LearnsAndLeavesAnAdapter) {
  const std::string folder = MustTrain(LoraRun());
  const std::vector<double> losses = Losses(folder);
  EXPECT_LT(losses.back(), losses.front() - 0.01);
  const std::string final = folder + "/final";
  EXPECT_FALSE(fs::exists(final + "/model.safetensors"));
  EXPECT_FALSE(fs::exists(final + "/config.json"));
  const auto config = ReadJson(final + "/adapter_config.json");
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 16);
  // Beside the folder, for whoever gets it; nothing of this machine's.
  EXPECT_EQ(config["base_model_name_or_path"], "../llama");
  for (const auto& file : fs::directory_iterator(final)) {
    EXPECT_THAT(ReadText(file.path().string()),
                AllOf(Not(HasSubstr(fs::path(Base()).parent_path().string())),
                      Not(HasSubstr(folder))))
        << file.path();
  }
  const nlohmann::json header =
      SafetensorsHeader(final + "/adapter_model.safetensors");
  EXPECT_GE(header.size(), 12);
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_TRUE(absl::StartsWith(name, "base_model.model.model.layers."))
        << name;
    EXPECT_EQ(entry["dtype"], "F32");
  }
  EXPECT_THAT(
      ReadText(final + "/README.md"),
      AllOf(HasSubstr("library_name: peft"), HasSubstr("parameters frozen"),
            HasSubstr("A LoRA adapter for `llama`")));
  // A checkpoint has what is trained alone.
  int64_t bytes = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(folder + "/checkpoints")) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  EXPECT_LT(bytes, fs::file_size(Base() + "/model.safetensors"));
}

TEST(LoraTest, OneCurveUnderEveryStrategy) {
  const std::vector<double> want = Losses(MustTrain(LoraRun()));
  for (const RunText& run :
       {LoraRun().Batch(1, 8), LoraRun().Ddp(2), LoraRun().Zero2(2),
        LoraRun().Fsdp(2), LoraRun().Fsdp(4).Batch(1, 8)}) {
    const std::vector<double> got = Losses(MustTrain(run));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 2e-5) << run.Text();
    }
  }
}

RunText DoraRun() {
  return LoraRun().Set("adapter",
                       "lora { rank: 4 alpha: 16 dora: true quantize: NF4 }");
}

// To the bit with any strategy; other micro-batches sum in another order.
TEST(LoraTest, DoraHasOneCurveAndResumes) {
  const auto exact = [](const RunText& run) {
    return RunText(run).Train("deterministic: true");
  };
  const std::string straight = MustTrain(exact(DoraRun()));
  const std::vector<double> want = Losses(straight);
  EXPECT_LT(want.back(), want.front() - 0.01);
  for (const RunText& run :
       {DoraRun().Ddp(2), DoraRun().Zero2(2),
        DoraRun().Fsdp(2).Train("activation_checkpointing: EVERY_UNIT")}) {
    EXPECT_EQ(Losses(MustTrain(exact(run))), want) << run.Text();
  }
  const std::vector<double> other = Losses(MustTrain(DoraRun().Batch(1, 8)));
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(other[i], want[i], 2e-5);
  const std::string folder = MustTrain(exact(DoraRun()).Train("max_steps: 3"));
  MustTrain(exact(DoraRun()).Train("resume: AUTO").Output(folder));
  EXPECT_EQ(Losses(folder), want);
}

// What is written is read: to go on from, to generate with and to merge.
TEST(LoraTest, DoraIsReadBack) {
  const std::string folder =
      MustTrain(LoraRun().Set("adapter", "lora { rank: 4 dora: true }"));
  const std::string final = folder + "/final";
  EXPECT_EQ(ReadJson(final + "/adapter_config.json")["use_dora"], true);
  EXPECT_EQ(SafetensorsHeader(final + "/adapter_model.safetensors")
                .count("base_model.model.model.layers.0.self_attn.q_proj."
                       "lora_magnitude_vector"),
            1);
  const RunText more = LoraRun().Set(
      "adapter", absl::StrCat("lora { pretrained: \"", final, "\" }"));
  EXPECT_LT(Losses(MustTrain(more)).front(), Losses(folder).front() - 0.01);
  const std::string merged = NewTestFolder("merged") + "/model";
  const TrainerResult result =
      RunTrainer({"merge", "--model=" + Base(), "--adapter=" + final,
                  "--output=" + merged});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto ids = [](std::vector<std::string> model) {
    model.insert(model.begin(), {"generate", "--prompt_ids=1,2,3",
                                 "--max_new_tokens=8", "--temperature=0"});
    const TrainerResult got = RunTrainer(model);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return got.out;
  };
  EXPECT_EQ(ids({"--model=" + Base(), "--adapter=" + final}),
            ids({"--model=" + merged}));
}

// Its texts are as its own run says, not the base's or by default.
TEST(LoraTest, AnAdaptersRunSaysHowItWrites) {
  const std::string folder = MustTrain(
      LoraRun()
          .Train("max_steps: 1")
          .Set("objective",
               "[plugin/capstan.causal_lm.Config] { max_new_tokens: 3 }"));
  const auto write = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"generate", "--model=" + folder,
                                     "--prompt_ids=1,2,3", "--seed=1"};
    args.insert(args.end(), more.begin(), more.end());
    const TrainerResult got = RunTrainer(args);
    EXPECT_EQ(got.exit_code, 0) << got.err;
    return got.out;
  };
  EXPECT_EQ(write({}), write({"--max_new_tokens=3"}));
  EXPECT_NE(write({}), write({"--max_new_tokens=4"}));
}

TEST(LoraTest, ResumesBitForBitAndOnAnotherNumberOfRanks) {
  const std::string straight = MustTrain(LoraRun().Ddp(2));
  const std::string folder = MustTrain(LoraRun().Ddp(2).Train("max_steps: 3"));
  MustTrain(LoraRun().Ddp(2).Train("resume: AUTO").Output(folder));
  EXPECT_EQ(Losses(folder), Losses(straight));
  const std::string file = "/final/adapter_model.safetensors";
  EXPECT_EQ(ReadText(folder + file), ReadText(straight + file));
  const std::string other = MustTrain(LoraRun().Ddp(2).Train("max_steps: 3"));
  MustTrain(LoraRun().Fsdp(4).Batch(1, 8).Train("resume: AUTO").Output(other));
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(Losses(other)[i], Losses(straight)[i], 2e-5);
  }
}

// Where no sample of a few values would look.
TEST(LoraTest, EachWeightOfTheBaseCounts) {
  const std::string folder = MustTrain(LoraRun().Train("max_steps: 2"));
  const std::string base = CopyFolder(Base(), "base");
  std::string weights = ReadText(base + "/model.safetensors");
  weights[weights.size() - 7] ^= 1;
  WriteText(base + "/model.safetensors", weights);
  const RunText run =
      LoraRun()
          .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { "
                                     "pretrained: \"",
                                     base, "\" }"))
          .Train("resume: AUTO max_steps: 4")
          .Output(folder);
  ExpectOneError(
      RunTrainer({"--config=" + run.File()}),
      {"run.pbtxt:", "model", "frozen weights", "same pretrained model"});
  const std::string adapter = folder + "/final";
  const std::vector<std::vector<std::string>> commands = {
      {"generate", "--prompt_ids=1,2", "--max_new_tokens=2"},
      {"eval", "--data=" + Runfile("tests/testdata/corpus.txt"),
       "--max_batches=1"},
      {"merge", "--output=" + NewTestFolder("merged") + "/model"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.end(), {"--model=" + base, "--adapter=" + adapter});
    ExpectOneError(RunTrainer(command),
                   {adapter + " was trained on a base of", "--other_base"});
    command.push_back("--other_base");
    const TrainerResult result = RunTrainer(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

// A run that hasn't ended has its adapter in checkpoints alone.
TEST(LoraTest, ACheckpointKnowsItsBaseToo) {
  const std::string base = CopyFolder(Base(), "base");
  const std::string folder = MustTrain(
      LoraRun()
          .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { "
                                     "pretrained: \"",
                                     base, "\" }"))
          .Train("max_steps: 2"));
  fs::remove_all(folder + "/final");
  const std::vector<std::vector<std::string>> commands = {
      {"generate", "--prompt_ids=1,2", "--max_new_tokens=2"},
      {"eval", "--data=" + Runfile("tests/testdata/corpus.txt"),
       "--max_batches=1"}};
  const auto run = [&](std::vector<std::string> command, bool other = false) {
    command.push_back("--model=" + folder);
    if (other) command.push_back("--other_base");
    return RunTrainer(command);
  };
  for (const auto& command : commands) {
    const TrainerResult result = run(command);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  std::string weights = ReadText(base + "/model.safetensors");
  weights[weights.size() - 7] ^= 1;
  WriteText(base + "/model.safetensors", weights);
  for (const auto& command : commands) {
    ExpectOneError(run(command),
                   {folder + "/checkpoints/step-00000002 was trained on a base",
                    base, "--other_base"});
    const TrainerResult forced = run(command, /*other=*/true);
    EXPECT_EQ(forced.exit_code, 0) << forced.err;
  }
}

// Trains an adapter whose base's weights become those of `change`, while the
// run has the file open. The run's output is *out; it ends after step *end.
TrainerResult TrainAsBaseChanges(
    const std::function<void(std::string* bytes)>& change, std::string* out,
    int64_t* end) {
  const std::string base = NewTestFolder("base");
  for (const char* name : {"/config.json", "/model.safetensors"}) {
    fs::copy_file(Base() + name, base + name);
  }
  const std::string weights = base + "/model.safetensors";
  std::string bytes = ReadText(weights);
  *out = NewTestFolder("run") + "/out";
  const RunText run =
      LoraRun()
          .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { "
                                     "pretrained: \"",
                                     base, "\" }"))
          .Train(absl::StrCat(kUntilTold, " log_every: 1"))
          .Output(*out);
  TrainerProcess process({"--config=" + run.File()});
  EXPECT_TRUE(process.WaitUntil(
      [&] { return CountLines(*out + "/metrics.jsonl") >= 2; }));
  change(&bytes);
  fs::rename(WriteText(base + "/others", bytes), weights);
  *end = EndAfter(20, *out, &process);
  return process.Wait();
}

TEST(LoraTest, AFinalFolderThatIsAnotherModelIsRemoved) {
  std::string out;
  int64_t end = 0;
  const TrainerResult result = TrainAsBaseChanges(
      [](std::string* bytes) {
        // Float32 of the other sign, of the last matrices.
        for (size_t i = bytes->size() - 1; i > bytes->size() / 2; i -= 4) {
          (*bytes)[i] = static_cast<char>((*bytes)[i] ^ 0x80);
        }
      },
      &out, &end);
  ExpectOneError(result, {out + "/final", "isn't the model that was trained"});
  EXPECT_FALSE(fs::exists(out + "/final"));
  EXPECT_EQ(CheckpointSteps(out).back(), end);
}

TEST(LoraTest, AFinalFolderStaysIfItsBaseCantBeRead) {
  std::string out;
  int64_t end = 0;
  const TrainerResult result = TrainAsBaseChanges(
      [](std::string* bytes) { bytes->resize(bytes->size() / 2); }, &out, &end);
  ExpectOneError(result, {out + "/final", "stays as it is"});
  EXPECT_TRUE(fs::exists(out + "/final/adapter_model.safetensors"));
}

TEST(LoraTest, GoesOnFromAnAdapter) {
  const std::string first = MustTrain(LoraRun());
  const std::string second =
      MustTrain(LoraRun()
                    .Set("adapter", absl::StrCat("lora { pretrained: \"", first,
                                                 "/final\" }"))
                    .Train("max_steps: 1"));
  // The text's first step again, with the trained adapter.
  EXPECT_LT(Losses(second)[0], Losses(first)[0] - 0.01);
  EXPECT_EQ(ReadJson(second + "/final/adapter_config.json")["lora_alpha"], 16);
}

TEST(LoraTest, BadAdapters) {
  const auto error = [](const std::string& lora,
                        const std::vector<std::string>& words) {
    const RunText run = LoraRun().Set("adapter", lora);
    ExpectOneError(RunTrainer({"check", "--config=" + run.File()}), words);
  };
  error("lora { rank: -1 }", {"adapter.lora.rank", "is -1"});
  error("lora { dropout: 1 }", {"adapter.lora.dropout", "[0, 1)"});
  error("lora { target_modules: \"nothing\" }", {"adapter.lora", "nothing"});
  error("lora { pretrained: \"/nowhere\" }",
        {"adapter.lora.pretrained", "/nowhere"});
  error("lora { pretrained: \"/nowhere\" rank: 3 }",
        {"adapter.lora.pretrained", "leave them out"});
  error(" ", {"adapter", "write lora {}"});
}

std::string Greedy(const std::vector<std::string>& where) {
  std::vector<std::string> args = {"generate", "--prompt_ids=1,2,3",
                                   "--max_new_tokens=12", "--greedy"};
  args.insert(args.end(), where.begin(), where.end());
  const TrainerResult result = RunTrainer(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(MergeTest, WritesWhatTheAdapterMakesOfItsBase) {
  const std::string adapter = Runfile("tests/golden/testdata/llama_lora");
  const std::string output = NewTestFolder("merged") + "/model";
  const TrainerResult result =
      RunTrainer({"merge", "--model=" + Base(), "--adapter=" + adapter,
                  "--output=" + output});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("differ from the adapter model's by at most"));
  for (const char* name : {"config.json", "README.md"}) {
    EXPECT_TRUE(fs::exists(output + "/" + name)) << name;
  }
  EXPECT_EQ(Greedy({"--model=" + output}),
            Greedy({"--model=" + Base(), "--adapter=" + adapter}));
  EXPECT_NE(Greedy({"--model=" + output}), Greedy({"--model=" + Base()}));
  // PEFT doesn't say which base it was.
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"generate", "--prompt_ids=1"},
        {"eval", "--max_batches=1", "--set", "eval_data=capstan.text",
         "--data=" + Runfile("tests/testdata/corpus.txt")}}) {
    std::vector<std::string> words = command;
    words.insert(words.end(), {"--model=" + Base(), "--adapter=" + adapter});
    EXPECT_THAT(RunTrainer(words).err,
                HasSubstr("doesn't say which weights its base had"));
  }
  // Not over what is there.
  ExpectOneError(RunTrainer({"merge", "--model=" + Base(),
                             "--adapter=" + adapter, "--output=" + output}),
                 {output, "is there already"});
}

TEST(MergeTest, OfARunOfOurs) {
  const std::string folder = MustTrain(LoraRun());
  const std::string output = NewTestFolder("merged") + "/model";
  const TrainerResult result =
      RunTrainer({"merge", "--model=" + Base(),
                  "--adapter=" + folder + "/final", "--output=" + output});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string merged = Greedy({"--model=" + output});
  // A run's folder stands for its adapter, which knows its base; a checkpoint
  // has the adapter, too.
  EXPECT_EQ(Greedy({"--model=" + folder}), merged);
  EXPECT_EQ(Greedy({"--model=" + folder + "/checkpoints/step-00000006"}),
            merged);
}

TEST(MergeTest, OfARunsFolderOnItsOwnBaseAlone) {
  const std::string folder = MustTrain(LoraRun());
  // As runs/NAME, whose newest run is behind a link.
  const std::string runs = NewTestFolder("runs");
  fs::create_directory_symlink(folder, runs + "/latest");
  const std::string root = NewTestFolder("merged");
  int count = 0;
  for (const std::string& run : {folder, runs, runs + "/latest"}) {
    const std::string output = absl::StrCat(root, "/", ++count);
    const TrainerResult result =
        RunTrainer({"merge", "--model=" + Base(), "--adapter=" + run,
                    "--output=" + output});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(Greedy({"--model=" + output}), Greedy({"--model=" + folder}));
  }
  // The same shapes, other weights: as merged before.
  const std::string other = root + "/other";
  ASSERT_EQ(RunTrainer({"merge", "--model=" + Base(), "--adapter=" + folder,
                        "--output=" + other})
                .exit_code,
            0);
  const std::vector<std::string> again = {"merge", "--model=" + other,
                                          "--adapter=" + folder,
                                          "--output=" + root + "/again"};
  ExpectOneError(RunTrainer(again), {folder + "/final was trained on a base",
                                     other, "--other_base"});
  EXPECT_FALSE(fs::exists(root + "/again"));
  std::vector<std::string> forced = again;
  forced.push_back("--other_base");
  EXPECT_EQ(RunTrainer(forced).exit_code, 0);
}

TEST(MergeTest, AnAdapterForAnotherModel) {
  const std::string adapter = Runfile("tests/golden/testdata/llama_lora");
  const std::string other =
      MustTrain(RunText().Train("max_steps: 1")) + "/final";
  ExpectOneError(
      RunTrainer({"merge", "--model=" + other, "--adapter=" + adapter,
                  "--output=" + NewTestFolder("merged") + "/model"}),
      {adapter, "for another model", "layers.0"});
  ExpectOneError(RunTrainer({"generate", "--model=" + other,
                             "--adapter=" + adapter, "--prompt_ids=1"}),
                 {"adapter.lora"});
  ExpectOneError(
      RunTrainer({"merge", "--model=" + Base(), "--adapter=" + Base(),
                  "--output=" + NewTestFolder("merged") + "/m"}),
      {"adapter_config.json"});
}

}  // namespace
}  // namespace capstan
