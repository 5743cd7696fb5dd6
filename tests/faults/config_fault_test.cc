// SPDX-License-Identifier: Apache-2.0
//
// Configs and data that can't be trained with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// What is wrong is found before a rank or a folder is made; on a busy machine,
// too.
constexpr double kSeconds = 30.0;

struct Fault {
  std::string name;
  std::string slot;  // replaced by text; "": text is a config of its own
  std::string text;
  std::vector<std::string> words;  // of the error
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

std::string Llama(const std::string& fields) {
  return absl::StrCat(
      "[plugin/capstan.llama.Config] { vocab_size: 256 intermediate_size: 88 "
      "num_hidden_layers: 2 num_attention_heads: 4 ",
      fields, " }");
}

// What the text itself shows.
std::vector<Fault> TextFaults() {
  return {
      {"UnknownField",
       "batch",
       "micro_batch_sise: 4",
       {"run.pbtxt:", "\"micro_batch_sise\"",
        "did you mean \"micro_batch_size\"?"}},
      {"UnknownFieldOfAPlugin",
       "model",
       Llama("hidden_size: 32 max_positions: 9"),
       {"run.pbtxt:", "\"max_positions\"", "capstan.llama.Config"}},
      {"UnknownSlot",
       "optimiser",
       "[plugin/capstan.sgd.Config] {}",
       {"run.pbtxt:", "\"optimiser\"", "did you mean \"optimizer\"?"}},
      {"WrongType",
       "schedule",
       "warmup_steps: \"ten\"",
       {"run.pbtxt:", "integer", "ten"}},
      {"WrongTypeOfAPluginsField",
       "optimizer",
       "[plugin/capstan.adamw.Config] { learning_rate: fast }",
       {"run.pbtxt:", "fast"}},
      {"UnknownEnumValue", "schedule", "kind: COSIN", {"run.pbtxt:", "COSIN"}},
      {"BrokenText", "batch", "micro_batch_size: 4 }}", {"run.pbtxt:"}},
      {"MisspeltPlugin",
       "strategy",
       "[plugin/capstan.ddq.Config] {}",
       {"run.pbtxt:", "\"capstan.ddq\"", "libcapstan_ddq.so",
        "did you mean \"capstan.ddp\"?"}},
      {"WrongSlot",
       "strategy",
       "[plugin/capstan.fp16.Config] {}",
       {"run.pbtxt:", "strategy", "capstan.fp16 is a precision",
        "a strategy is wanted"}},
      {"EmptySlot", "optimizer", "", {"optimizer", "trainer plugins"}},
      {"NoNumberOfAPlugin",
       "optimizer",
       "[plugin/capstan.adamw.Config] { weight_decay: inf }",
       {"run.pbtxt:", "optimizer.weight_decay", "finite number, is inf"}},
      {"APathThatIsNoText",
       "train_data",
       TextData("na\\377me", 32),
       {"run.pbtxt:", "train_data", "UTF-8"}},
  };
}

// Every field is one that there is, but the parts don't fit.
std::vector<Fault> ValueFaults() {
  return {
      {"MissingFile",
       "train_data",
       TextData("no/such/file.txt", 32),
       {"run.pbtxt:", "train_data.path", "no/such/file.txt"}},
      {"FolderForAFile",
       "train_data",
       TextData("/", 32),
       {"run.pbtxt:", "train_data.path"}},
      {"SequenceLongerThanTheModelAllows",
       "train_data",
       TextData(Runfile("tests/testdata/corpus.txt"), 129),
       {"129", "max_position_embeddings", "128"}},
      {"HiddenSizeNotDivisibleByHeads",
       "model",
       Llama("hidden_size: 30"),
       {"run.pbtxt:", "model.hidden_size", "num_attention_heads", "4", "30"}},
      {"VocabularyTooSmall",
       "model",
       absl::StrReplaceAll(Llama("hidden_size: 32"),
                           {{"vocab_size: 256", "vocab_size: 200"}}),
       {"run.pbtxt:", "vocab_size is 200", "255", "256"}},
      {"MissingSize",
       "model",
       "[plugin/capstan.llama.Config] { vocab_size: 256 }",
       {"run.pbtxt:", "model.", "must be"}},
      {"GlobalBatchNotDivisible",
       "batch",
       "micro_batch_size: 3 global_batch_size: 8",
       {"run.pbtxt:", "batch.global_batch_size", "8",
        "multiple of micro_batch_size, 3"}},
      {"NegativeBatch",
       "batch",
       "micro_batch_size: -1",
       {"run.pbtxt:", "batch.micro_batch_size", "between 1 and",
        "or 0 for the default, is -1"}},
      // Before anything is allocated or started.
      {"ABatchThatNoMachineHolds",
       "batch",
       "micro_batch_size: 20000000",
       {"run.pbtxt:", "batch.micro_batch_size", "is 20000000", "this machine",
        "fits"}},
      {"ABatchWhoseBytesAreNoInteger",
       "batch",
       "micro_batch_size: 2147483646",
       {"run.pbtxt:", "batch.micro_batch_size", "is 2147483646: already of ",
        "this machine"}},
      {"RanksThatCanOnlyWait",
       "launch",
       "processes: 10000",
       {"run.pbtxt:", "launch.processes", "is 10000", "cores"}},
      {"SingleOnTwoRanks",
       "launch",
       "processes: 2",
       {"run.pbtxt:", "strategy", "2"}},
      {"NegativeRanks",
       "launch",
       "processes: -2",
       {"run.pbtxt:", "launch.processes", "-2"}},
      {"HostsWithoutANumber",
       "launch",
       "processes: 1 nodes: 2",
       {"run.pbtxt:", "launch.node_rank", "nodes is 2"}},
      {"AGpuThatIsNotThere",
       "launch",
       "processes: 1 gpu_ids: 99",
       {"run.pbtxt:", "launch.gpu_ids", "names GPU 99"}},
      {"NegativeLearningRate",
       "optimizer",
       "[plugin/capstan.adamw.Config] { learning_rate: -1 }",
       {"run.pbtxt:", "optimizer.learning_rate", "-1"}},
      {"WarmUpLongerThanTheRun",
       "schedule",
       "kind: LINEAR warmup_steps: 99",
       {"run.pbtxt:", "schedule.warmup_steps", "99"}},
      {"EvalDataMissing",
       "eval_data",
       TextData("gone.txt", 32),
       {"run.pbtxt:", "eval_data.path", "gone.txt"}},
      {"ValidationPartTooShort",
       "train_data",
       TextData(Runfile("tests/testdata/corpus.txt"), 64,
                "validation_fraction: 0.0001"),
       {"run.pbtxt:", "train_data.", "validation"}},
  };
}

class ConfigFaultTest : public ::testing::TestWithParam<Fault> {};

TEST_P(ConfigFaultTest, OneClearError) {
  const RunText run = RunText()
                          .Set(GetParam().slot, GetParam().text)
                          .Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, GetParam().words);
  EXPECT_EQ(result.out, "");
  EXPECT_LT(result.seconds, kSeconds);
  EXPECT_FALSE(fs::exists(run.output()));
}

std::string NameOf(const ::testing::TestParamInfo<Fault>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Text, ConfigFaultTest,
                         ::testing::ValuesIn(TextFaults()), NameOf);
INSTANTIATE_TEST_SUITE_P(Values, ConfigFaultTest,
                         ::testing::ValuesIn(ValueFaults()), NameOf);

TEST(DataFaultTest, EmptyFile) {
  const std::string empty = WriteText(NewTestFolder("data") + "/empty.txt", "");
  const RunText run = RunText().Set("train_data", TextData(empty, 32));
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"run.pbtxt:", "train_data", empty});
}

TEST(DataFaultTest, FileShorterThanOneSequence) {
  const std::string file = CorpusPiece(31);
  const RunText run = RunText().Set("train_data", TextData(file, 32));
  ExpectOneError(
      RunTrainer({"--config=" + run.File()}),
      {"run.pbtxt:", "train_data.sequence_length", file, "31", "32"});
}

TEST(CheckFaultTest, FindsItToo) {
  const RunText run =
      RunText().Batch(3, 8).Output(NewTestFolder("run") + "/out");
  ExpectOneError(RunTrainer({"check", "--config=" + run.File()}),
                 {"run.pbtxt:", "batch.global_batch_size"});
  EXPECT_FALSE(fs::exists(run.output()));
}

// Training that blows up ends, with the steps named, rather than going on.
TEST(DivergenceTest, IsAnError) {
  const RunText run =
      RunText()
          .Set("optimizer",
               "[plugin/capstan.sgd.Config] { learning_rate: 1e12 }")
          .Ddp(2)
          .Train("max_steps: 1000 max_grad_norm: 0")
          .Output(NewTestFolder("run") + "/out");
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"not been finite for 20 steps", "since step",
                  "lower the learning rate"});
}

// Finite losses, too, can be those of a run that has learnt nothing.
TEST(DivergenceTest, FiniteLossesThatHaveGrownAreAnError) {
  for (const int ranks : {1, 2}) {
    RunText run =
        RunText()
            .Set("optimizer",
                 "[plugin/capstan.adamw.Config] { learning_rate: 10 }")
            .Ddp(ranks)
            .Train("max_steps: 20")
            .Output(NewTestFolder("run") + "/out");
    const std::vector<std::string> words = {
        "the run has diverged: its last losses are about", "the first was 5.",
        "capstan.adamw with learning_rate 10", run.output()};
    ExpectOneError(RunTrainer({"--config=" + run.File()}), words);
    EXPECT_EQ(ReadJson(run.output() + "/summary.json")["status"], "failed");
    // It stays so when the command is given again.
    run.Train("resume: AUTO");
    ExpectOneError(RunTrainer({"--config=" + run.File()}), words);
  }
}

TEST(ConfigFileTest, MissingOnes) {
  ExpectOneError(RunTrainer({"--config=nowhere.pbtxt"}),
                 {"--config=nowhere.pbtxt", "no such file"});
  ExpectOneError(RunTrainer({"--config=" + NewTestFolder("folder")}),
                 {"is a folder: a config is a file", "--model"});
}

TEST(OverrideFaultTest, NamesTheOverride) {
  const std::string config = "--config=" + RunText().File();
  ExpectOneError(RunTrainer({config, "--set", "train.max_step=3"}),
                 {"--set train.max_step=3", "did you mean \"max_steps\"?"});
  ExpectOneError(RunTrainer({config, "--set", "train.max_steps=many"}),
                 {"--set train.max_steps=many", "many"});
  ExpectOneError(RunTrainer({config, "--set", "train.max_steps"}),
                 {"--set train.max_steps", "path=value"});
  ExpectOneError(RunTrainer({config, "--set", "eval_data.path=x"}),
                 {"eval_data"});
  ExpectOneError(RunTrainer({config, "--set", "model.hidden_size=31"}),
                 {"--set model.hidden_size=31", "num_attention_heads"});
}

TEST(NameFaultTest, BytesThatAreNoText) {
  for (const char* const name : {"na\\377me", "na\377me"}) {
    const std::string text =
        absl::StrCat("name: \"", name, "\"\n", RunText().Text());
    const std::string file =
        WriteText(NewTestFolder("config") + "/run.pbtxt", text);
    ExpectOneError(RunTrainer({"--config=" + file}),
                   {"run.pbtxt:1:1: name: must be UTF-8, is \"na\\xffme\""});
  }
}

TEST(TrainFaultTest, NumbersThatMakeNoSense) {
  const std::string config = "--config=" + RunText().File();
  const std::pair<const char*, std::vector<std::string>> faults[] = {
      {"train.max_epochs=nan", {"train.max_epochs: must be a finite", "nan"}},
      {"train.max_epochs=inf", {"train.max_epochs: must be a finite", "inf"}},
      {"train.max_epochs=1e300", {"train.max_epochs", "is 1e+300"}},
      {"train.skip_bad_samples=-1", {"train.skip_bad_samples", "-1"}},
      {"train.loss_spikes.z_score=-2", {"train.loss_spikes", "z_score", "-2"}},
      {"train.loss_spikes.window=7", {"train.loss_spikes", "window", "7"}},
      {"train.loss_spikes.action=SKIP", {"train.loss_spikes", "set z_score"}}};
  for (const auto& [setting, words] : faults) {
    ExpectOneError(RunTrainer({config, "--set", setting}), words);
  }
  // The run has no checkpoints before its end.
  ExpectOneError(RunTrainer({config, "--set", "train.loss_spikes.z_score=6",
                             "--set", "train.loss_spikes.action=GO_BACK"}),
                 {"train.loss_spikes", "save_every"});
}

// A copy of a plugin whose fingerprint says another LibTorch. It is refused
// before any of its code runs, and the trainer's own isn't taken instead.
TEST(PluginFaultTest, OfAnotherBuild) {
  const std::string folder = NewTestFolder("plugins");
  std::string bytes = ReadText(Runfile("trainer/plugins/libcapstan_fp32.so"));
  const int replaced =
      absl::StrReplaceAll({{"libtorch=2.", "libtorch=1."}}, &bytes);
  ASSERT_GT(replaced, 0);
  const std::string library = WriteText(folder + "/libcapstan_fp32.so", bytes);
  const TrainerResult result =
      RunTrainer({"--config=" + RunText().File(), "--plugin_path=" + folder});
  ExpectOneError(result,
                 {"run.pbtxt:", library, "is refused", "libtorch: trainer 2.",
                  "plugin 1.", "build it again"});
  const TrainerResult list = RunTrainer({"plugins", "--plugin_path=" + folder});
  EXPECT_EQ(list.exit_code, 1);
  EXPECT_THAT(list.out, ::testing::HasSubstr("refused"));
}

TEST(PluginFaultTest, NotALibrary) {
  const std::string folder = NewTestFolder("plugins");
  WriteText(folder + "/libcapstan_fp32.so", "#!/bin/sh\n");
  ExpectOneError(
      RunTrainer({"--config=" + RunText().File(), "--plugin_path=" + folder}),
      {"libcapstan_fp32.so", "is refused"});
}

}  // namespace
}  // namespace capstan
