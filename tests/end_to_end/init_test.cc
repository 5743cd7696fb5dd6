// SPDX-License-Identifier: Apache-2.0
//
// `trainer init`: from data to a config that `check` and `plan` pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A new folder, in which init runs.
std::string Place() {
  static int places = 0;
  return NewTestFolder(absl::StrCat("init", ++places));
}

TrainerResult Init(const std::string& folder, std::vector<std::string> flags,
                   const std::string& input = "") {
  TrainerOptions options;
  options.folder = folder;
  options.input = input;
  flags.insert(flags.begin(), "init");
  return RunTrainer(flags, options);
}

std::string LastLine(const TrainerResult& result) {
  const std::vector<std::string> lines =
      absl::StrSplit(result.out, '\n', absl::SkipEmpty());
  return lines.empty() ? "" : lines.back();
}

// The config that init has written, which `check` and `plan` pass.
std::string MustWrite(const std::string& folder, const std::string& config,
                      const TrainerResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  TrainerOptions options;
  options.folder = folder;
  for (const char* command : {"check", "plan"}) {
    const TrainerResult read =
        RunTrainer({command, "--config=" + config}, options);
    EXPECT_EQ(read.exit_code, 0) << read.err;
  }
  return ReadText(absl::StrCat(folder, "/", config));
}

// A Hugging Face folder with random weights and a chat template.
std::string Model() {
  static const auto* const folder = new std::string(
      MustTrain(
          RunText()
              .Set("model",
                   "[plugin/capstan.llama.Config] { vocab_size: 4096 "
                   "hidden_size: 32 intermediate_size: 48 num_hidden_layers: 2 "
                   "num_attention_heads: 4 num_key_value_heads: 2 "
                   "max_position_embeddings: 128 bos_token_id: 1 eos_token_id: "
                   "2 }")
              .Set(
                  "train_data",
                  absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                               WriteText(Place() + "/rows.jsonl",
                                         "{\"question\": \"Who?\", "
                                         "\"answer\": \"I.\"}\n"),
                               "\" tokenizer: \"",
                               Runfile("datasets/samples/tokenizer"),
                               "\" chat_template: \"chatml\" max_length: 96 }"))
              .Batch(1, 1)
              .Train("max_steps: 1")) +
      "/final");
  return *folder;
}

TEST(InitTest, ATextBecomesAModelThatWritesInThreeCommands) {
  const std::string folder = Place();
  std::filesystem::copy(CorpusPiece(100000), folder + "/my.txt");
  const TrainerResult result =
      Init(folder, {"--yes", "--data=my.txt", "--time=10s"});
  const std::string config = MustWrite(folder, "my.pbtxt", result);
  EXPECT_THAT(config, HasSubstr("path: \"my.txt\""));
  EXPECT_THAT(result.out, HasSubstr("measured; "));
  EXPECT_THAT(LastLine(result), HasSubstr("trainer --config=my.pbtxt"));
  TrainerOptions options;
  options.folder = folder;
  EXPECT_EQ(RunTrainer({"--config=my.pbtxt", "--set", "train.max_steps=3",
                        "--set", "train.eval_batches=1"},
                       options)
                .exit_code,
            0);
  EXPECT_THAT(result.out, HasSubstr("generate --model=runs/my/latest"));
  const TrainerResult written = RunTrainer(
      {"generate", "--model=runs/my/latest", "--prompt=The"}, options);
  EXPECT_EQ(written.exit_code, 0) << written.err;
  // A run's name is its newest run.
  EXPECT_EQ(RunTrainer({"verify", "runs/my"}, options).exit_code, 0);
  const TrainerResult further =
      Init(folder, {"--yes", "--data=my.txt", "--model=runs/my", "--time=10s",
                    "--output=further.pbtxt"});
  EXPECT_THAT(MustWrite(folder, "further.pbtxt", further),
              HasSubstr("/final\""));
}

TEST(InitTest, NothingIsOverwrittenUnasked) {
  const std::string folder = Place();
  std::filesystem::copy(CorpusPiece(20000), folder + "/my.txt");
  WriteText(folder + "/my.pbtxt", "mine");
  const std::vector<std::string> flags = {"--yes", "--data=my.txt",
                                          "--time=10s"};
  ExpectOneError(Init(folder, flags), {"my.pbtxt exists", "--force"});
  EXPECT_EQ(ReadText(folder + "/my.pbtxt"), "mine");
  std::vector<std::string> forced = flags;
  forced.push_back("--force");
  EXPECT_EQ(Init(folder, forced).exit_code, 0);
  EXPECT_NE(ReadText(folder + "/my.pbtxt"), "mine");
  // The data not even by force.
  forced.push_back("--output=my.txt");
  const std::string data = ReadText(folder + "/my.txt");
  ExpectOneError(Init(folder, forced), {"my.txt is your data", "--output"});
  EXPECT_EQ(ReadText(folder + "/my.txt"), data);
  ExpectOneError(Init(folder, {"--yes", "--data=my.txt", "--where=slurm",
                               "--output=job.slurm"}),
                 {"--output", "the job's script"});
}

TEST(InitTest, AFolderOfTextsIsJoined) {
  const std::string folder = Place();
  std::filesystem::create_directories(folder + "/notes");
  WriteText(folder + "/notes/a.md", std::string(3000, 'a'));
  WriteText(folder + "/notes/b.txt", std::string(3000, 'b'));
  // Questions in a pipe: no model, here, a time, the file's name.
  const TrainerResult result =
      Init(folder, {}, "nothing\nnotes\n\n1\nsoon\n10s\nn.pbtxt\n");
  const std::string config = MustWrite(folder, "n.pbtxt", result);
  EXPECT_THAT(result.out, HasSubstr("is a time from 10s"));
  EXPECT_THAT(result.out, HasSubstr("nothing doesn't exist"));
  EXPECT_THAT(config, HasSubstr("path: \"n.joined.txt\""));
  const std::string joined =
      absl::StrCat(std::string(3000, 'a'), "\n", std::string(3000, 'b'), "\n");
  EXPECT_EQ(ReadText(folder + "/n.joined.txt"), joined);
  // In the folder itself, where an earlier call has written the same.
  WriteText(folder + "/notes/nn.joined.txt", joined);
  WriteText(folder + "/notes/nn.txt", config);
  EXPECT_EQ(Init(folder, {"--yes", "--force", "--data=notes",
                          "--output=notes/nn.txt", "--where=slurm"})
                .exit_code,
            0);
  EXPECT_EQ(ReadText(folder + "/notes/nn.joined.txt"), joined);
  EXPECT_THAT(ReadText(folder + "/notes/nn.txt"),
              HasSubstr("path: \"nn.joined.txt\""));
  ExpectOneError(Init(folder, {"--yes", "--force", "--data=notes",
                               "--output=notes/a.md", "--time=10s"}),
                 {"notes/a.md is your data"});
}

TEST(InitTest, AFolderMayHaveOneText) {
  const std::string folder = Place();
  std::filesystem::create_directories(folder + "/notes");
  WriteText(folder + "/notes/a.md", std::string(6000, 'a'));
  MustWrite(folder, "notes.pbtxt",
            Init(folder, {"--yes", "--data=notes", "--where=slurm"}));
}

TEST(InitTest, RowsAndAModelAreAFineTune) {
  const std::string folder = Place();
  std::string rows = "question,answer\n";
  for (int i = 0; i < 60; ++i) {
    absl::StrAppend(&rows, "Who is ", i, "?,It is ", i + 1, ".\n");
  }
  WriteText(folder + "/chats.csv", rows);
  ExpectOneError(Init(folder, {"--yes", "--data=chats.csv"}),
                 {"chats.csv has rows", "--model=FOLDER"});
  const TrainerResult all =
      Init(folder, {"--yes", "--data=chats.csv", "--model=" + Model()});
  const std::string config = MustWrite(folder, "chats.pbtxt", all);
  EXPECT_THAT(config, HasSubstr("loss_on: ASSISTANT"));
  EXPECT_THAT(config, HasSubstr("max_length: 64"));
  EXPECT_THAT(config, Not(HasSubstr("lora")));
  EXPECT_THAT(config, HasSubstr("user: \"Who is 0?\""));
  EXPECT_THAT(all.out, HasSubstr("chat --model=runs/chats/latest"));
  const TrainerResult adapter =
      Init(folder, {"--yes", "--data=chats.csv", "--model=" + Model(),
                    "--prefer=memory", "--output=lora.pbtxt"});
  EXPECT_THAT(MustWrite(folder, "lora.pbtxt", adapter),
              HasSubstr("adapter { lora {"));
}

TEST(InitTest, LabelsOfTextsAreToldNotLearned) {
  const std::string folder = Place();
  std::string rows = "Text,Label\n";
  for (int i = 0; i < 24; ++i) absl::StrAppend(&rows, "Good ", i, ",1\n");
  WriteText(folder + "/reviews.csv", rows);
  const TrainerResult all =
      Init(folder, {"--yes", "--data=reviews.csv", "--model=" + Model(),
                    "--output=reviews.pbtxt"});
  MustWrite(folder, "reviews.pbtxt", all);
  EXPECT_THAT(all.out, HasSubstr("texts have a label, \"1\""));
}

TEST(InitTest, BadRowsAreAskedAbout) {
  const std::string folder = Place();
  std::string rows = "{\"question\": 7}\n";
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&rows, "{\"question\": \"", i, "?\", \"answer\": \"", i,
                    ".\"}\n");
  }
  WriteText(folder + "/chats.jsonl", rows);
  const std::vector<std::string> flags = {
      "--data=chats.jsonl", "--model=" + Model(), "--where=slurm",
      "--time=10s",         "--prefer=quality",   "--output=chats.pbtxt"};
  std::vector<std::string> yes = flags;
  yes.push_back("--yes");
  ExpectOneError(Init(folder, yes), {"chats.jsonl:1", "--bad_rows=skip"});
  // 2 nodes of 8 GPUs of 80 GiB; then the rows.
  const TrainerResult asked = Init(folder, flags, "\n\n\n2\n");
  EXPECT_THAT(asked.out, HasSubstr("leave them out: 20 are good"));
  EXPECT_THAT(MustWrite(folder, "chats.pbtxt", asked),
              HasSubstr("bad_rows: SKIP"));
}

bool HasCheckpoint(const std::string& folder) {
  std::error_code error;
  std::filesystem::recursive_directory_iterator at(folder, error), end;
  for (; !error && at != end; at.increment(error)) {
    if (absl::StrContains(at->path().filename().string(), "step-")) return true;
  }
  return false;
}

// Of a run that saves at each step.
TEST(InitTest, TheTrialWritesNoCheckpoint) {
  const std::string folder = Place();
  std::string rows;
  for (int i = 0; i < 30; ++i) {
    absl::StrAppend(&rows, "{\"question\": \"", i, "?\", \"answer\": \"", i,
                    ".\"}\n");
  }
  WriteText(folder + "/chats.jsonl", rows);
  TrainerOptions options;
  options.folder = folder;
  const std::string scratch = Place();
  options.environment["TMPDIR"] = scratch;
  TrainerProcess init(
      {"init", "--yes", "--data=chats.jsonl", "--model=" + Model()}, options);
  EXPECT_FALSE(init.WaitUntil([&] { return HasCheckpoint(scratch); }));
  EXPECT_THAT(init.Wait().out, HasSubstr("measured; "));
  EXPECT_THAT(ReadText(folder + "/chats.pbtxt"), HasSubstr("save_every: 1\n"));
}

// Neither the trial nor the joined text.
TEST(InitTest, ASignalLeavesNothing) {
  const std::string folder = Place();
  std::filesystem::create_directories(folder + "/notes");
  for (const char* name : {"a.md", "b.md"}) {
    std::filesystem::copy(CorpusPiece(50000),
                          absl::StrCat(folder, "/notes/", name));
  }
  WriteText(folder + "/notes.joined.txt", "an earlier call's");
  TrainerOptions options;
  options.folder = folder;
  const std::string scratch = Place();
  options.environment["TMPDIR"] = scratch;
  TrainerProcess init({"init", "--yes", "--force", "--data=notes"}, options);
  EXPECT_TRUE(init.WaitUntil([&] {
    for (const auto& trial : std::filesystem::directory_iterator(scratch)) {
      if (std::filesystem::exists(trial.path() / "run")) return true;
    }
    return false;
  }));
  init.Signal(SIGTERM);
  init.Wait();
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
  const std::filesystem::directory_iterator left(folder), end;
  EXPECT_EQ(std::distance(left, end), 2);
  EXPECT_EQ(ReadText(folder + "/notes.joined.txt"), "an earlier call's");
}

TEST(InitTest, PairsAreDpo) {
  const std::string folder = Place();
  std::string rows;
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&rows, "{\"prompt\": \"Count ", i,
                    ":\", \"chosen\": \" yes\", \"rejected\": \" no\"}\n");
  }
  WriteText(folder + "/pairs.jsonl", rows);
  const TrainerResult adapter =
      Init(folder, {"--yes", "--data=pairs.jsonl", "--model=" + Model()});
  EXPECT_THAT(MustWrite(folder, "pairs.pbtxt", adapter),
              HasSubstr("kind: PREFERENCE"));
  // Packed ones, whose columns are seen late, are no different.
  std::filesystem::copy(folder + "/pairs.jsonl", folder + "/packed.jsonl");
  ASSERT_EQ(std::system(("gzip " + folder + "/packed.jsonl").c_str()), 0);
  const TrainerResult packed =
      Init(folder, {"--yes", "--data=packed.jsonl.gz", "--model=" + Model()});
  EXPECT_THAT(
      MustWrite(folder, "packed.jsonl.pbtxt", packed),
      AllOf(HasSubstr("kind: PREFERENCE"), HasSubstr("adapter {"),
            HasSubstr("learning_rate: 1e-05"), HasSubstr("max_epochs: 1")));
  // Without an adapter the reference is a step of its own.
  const TrainerResult all =
      Init(folder, {"--yes", "--data=pairs.jsonl", "--model=" + Model(),
                    "--prefer=quality", "--output=all.pbtxt"});
  EXPECT_THAT(LastLine(all), HasSubstr("dpo-reference --config=all.pbtxt"));
  EXPECT_THAT(ReadText(folder + "/all.pbtxt"),
              HasSubstr("reference: \"all.reference\""));
}

TEST(InitTest, AnswersWithLabelsAreKto) {
  const std::string folder = Place();
  std::string rows;
  for (int i = 0; i < 20; ++i) {
    absl::StrAppend(&rows, "{\"prompt\": \"Count ", i,
                    ":\", \"completion\": \" yes\", \"label\": ",
                    i % 2 == 0 ? "true" : "false", "}\n");
  }
  WriteText(folder + "/labels.jsonl", rows);
  const std::vector<std::string> flags = {"--yes", "--data=labels.jsonl",
                                          "--model=" + Model()};
  const TrainerResult adapter = Init(folder, flags);
  EXPECT_THAT(adapter.out, HasSubstr("answers with labels"));
  EXPECT_THAT(MustWrite(folder, "labels.pbtxt", adapter),
              AllOf(HasSubstr("kind: UNPAIRED"), HasSubstr("loss: KTO")));
  std::vector<std::string> all = flags;
  all.insert(all.end(), {"--prefer=quality", "--output=all.pbtxt"});
  EXPECT_THAT(LastLine(Init(folder, all)),
              HasSubstr("dpo-reference --config=all.pbtxt"));
  EXPECT_THAT(ReadText(folder + "/all.pbtxt"),
              AllOf(HasSubstr("kind: UNPAIRED"), HasSubstr("loss: KTO"),
                    HasSubstr("reference: \"all.reference\"")));
  // A row without a label isn't left out unasked, and is named.
  WriteText(folder + "/labels.jsonl",
            rows + "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
  std::vector<std::string> skip = flags;
  skip.insert(skip.end(), {"--output=skip.pbtxt"});
  ExpectOneError(Init(folder, skip), {"labels.jsonl:21", "label"});
  skip.push_back("--bad_rows=skip");
  const TrainerResult skipped = Init(folder, skip);
  EXPECT_THAT(skipped.out, HasSubstr("labels.jsonl:21"));
  EXPECT_THAT(MustWrite(folder, "skip.pbtxt", skipped),
              HasSubstr("bad_rows: SKIP"));
}

TEST(InitTest, HistoriesAreAlgorithmDistillation) {
  const std::string folder = Place();
  const TrainerResult collected = RunTrainer(
      {"collect", "--config=" + Runfile("configs/collect_darkroom.pbtxt"),
       "--set", "collect.output=" + folder + "/h.hdf5", "--set",
       "collect.tasks=10", "--set", "collect.grid_size=5", "--set",
       "collect.streams=2", "--set", "collect.steps=160"});
  ASSERT_EQ(collected.exit_code, 0) << collected.err;
  const TrainerResult result =
      Init(folder, {"--yes", "--data=h.hdf5", "--time=10s"});
  EXPECT_THAT(MustWrite(folder, "h.pbtxt", result),
              HasSubstr("observation: [5, 5]"));
  EXPECT_THAT(result.out, HasSubstr("eval --model=runs/h/latest"));
}

TEST(InitTest, AClustersScriptIsWritten) {
  const std::string folder = Place();
  std::filesystem::copy(CorpusPiece(20000), folder + "/my.txt");
  const TrainerResult result =
      Init(folder, {"--yes", "--data=my.txt", "--where=slurm", "--nodes=3",
                    "--gpus=4", "--gpu_memory=24GiB"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(LastLine(result), HasSubstr("sbatch my.slurm"));
  EXPECT_THAT(ReadText(folder + "/my.slurm"), HasSubstr("--nodes=3"));
  EXPECT_THAT(ReadText(folder + "/my.pbtxt"),
              HasSubstr("launch { processes: 4 }"));
  ExpectOneError(Init(folder, {"--yes", "--data=my.txt", "--gpus=4"}),
                 {"--where", "slurm"});
}

TEST(InitTest, WithoutDataItSaysWhatThereIs) {
  const std::string folder = Place();
  const TrainerResult nothing = Init(folder, {"--yes"});
  EXPECT_EQ(nothing.exit_code, 0);
  EXPECT_THAT(LastLine(nothing), HasSubstr("--config=run_distributed.pbtxt"));
  const TrainerResult model = Init(folder, {"--yes", "--data=" + Model()});
  EXPECT_EQ(model.exit_code, 0);
  EXPECT_THAT(LastLine(model), HasSubstr("--data=PATH"));
  WriteText(folder + "/empty.txt", "");
  WriteText(folder + "/odd.jsonl", "{\"foo\": 1}\n");
  ExpectOneError(Init(folder, {"--yes", "--data=empty.txt"}), {"is empty"});
  ExpectOneError(
      Init(folder, {"--yes", "--data=odd.jsonl", "--model=" + Model()}),
      {"odd.jsonl:1: has the keys \"foo\"",
       "`trainer data odd.jsonl --model="});
  std::filesystem::create_directories(folder + "/torch");
  WriteText(folder + "/torch/config.json", "{}");
  WriteText(folder + "/torch/pytorch_model.bin", "..");
  ExpectOneError(Init(folder, {"--yes", "--data=odd.jsonl", "--model=torch"}),
                 {"`trainer convert torch --output=torch-safetensors`"});
  ExpectOneError(Init(folder, {"--yes", "--force", "--data=odd.jsonl",
                               "--model=" + Model(),
                               "--output=" + Model() + "/config.json"}),
                 {"config.json is your model's", "--output"});
}

}  // namespace
}  // namespace capstan
