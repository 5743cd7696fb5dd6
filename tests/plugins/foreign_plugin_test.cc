// SPDX-License-Identifier: Apache-2.0
//
// A plugin that the trainer knows nothing of, dropped into a folder.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLibrary[] = "libacme_signsgd.so";

// A folder that holds the plugin, and nothing else.
std::string PluginFolder(const std::string& library = kLibrary) {
  const std::string folder = NewTestFolder("plugins");
  WriteText(folder + "/" + library,
            ReadText(Runfile("tests/plugins/acme/" + library)));
  return folder;
}

RunText SignSgdRun() {
  return RunText()
      .Set("optimizer", "[plugin/acme.signsgd.Config] { learning_rate: 1e-3 }")
      .Train("max_steps: 12")
      .Output(NewTestFolder("run") + "/out");
}

TEST(ForeignPluginTest, Trains) {
  const RunText run = SignSgdRun().Ddp(2).Batch(4, 8);
  const TrainerResult result =
      RunTrainer({"--config=" + run.File(), "--plugin_path=" + PluginFolder()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<double> losses = ReadMetrics(run.output()).losses();
  ASSERT_EQ(losses.size(), 12);
  EXPECT_NEAR(losses.front(), 5.55, 0.1) << "log 256";
  EXPECT_LT(losses.back(), losses.front() - 0.5);
}

TEST(ForeignPluginTest, WorksInEveryCommandThatReadsAConfig) {
  const std::string path = "--plugin_path=" + PluginFolder();
  const RunText run = SignSgdRun();
  const TrainerResult check =
      RunTrainer({"check", "--config=" + run.File(), path});
  EXPECT_EQ(check.exit_code, 0) << check.err;
  const TrainerResult print =
      RunTrainer({"--config=" + run.File(), path, "--print_config"});
  EXPECT_THAT(print.out, AllOf(HasSubstr("[plugin/acme.signsgd.Config]"),
                               HasSubstr("learning_rate: 0.001")));
  EXPECT_EQ(print.exit_code, 0) << print.err;
}

TEST(ForeignPluginTest, ItsOwnErrorsNameThePlaceInTheConfig) {
  const RunText run =
      SignSgdRun().Set("optimizer", "[plugin/acme.signsgd.Config] {}");
  const TrainerResult result = RunTrainer(
      {"check", "--config=" + run.File(), "--plugin_path=" + PluginFolder()});
  ExpectOneError(result, {"run.pbtxt:", "optimizer.learning_rate",
                          "must be greater than 0"});
}

TEST(ForeignPluginTest, WithoutItsPathTheErrorSaysWhatWasLookedFor) {
  const RunText run = SignSgdRun();
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(
      result, {"run.pbtxt:", "\"acme.signsgd\"", kLibrary, "trainer/plugins"});
  EXPECT_FALSE(std::filesystem::exists(run.output()));
}

class FaultyReaderTest : public ::testing::TestWithParam<const char*> {};

// Sample 19 is rank 1's in the first of the third step's two micro-steps: the
// other rank is in the step's collectives when this one fails.
TEST_P(FaultyReaderTest, AFailureOnOneRankEndsAllWithItsOwnError) {
  for (const bool out_of_memory : {false, true}) {
    RunText run =
        RunText()
            .Set("train_data",
                 std::string("[plugin/acme.faulty.Config] { broken_sample: 19 "
                             "out_of_memory: ") +
                     (out_of_memory ? "true }" : "false }"))
            .Strategy(GetParam(), 2)
            .Batch(2, 8)
            .Train("max_steps: 12 save_every: 1")
            .Output(NewTestFolder("run") + "/out");
    const TrainerResult result =
        RunTrainer({"--config=" + run.File(),
                    "--plugin_path=" + PluginFolder("libacme_faulty.so")});
    ExpectOneError(
        result, {"[rank 1]", "step 3",
                 out_of_memory ? "micro_batch_size" : "sample 19 is damaged"});
    EXPECT_LT(result.seconds, 100.0);
    EXPECT_EQ(CheckpointSteps(run.output()).back(), 2);
  }
}

// A plugin's exit() would look like a run that ended well.
TEST(ForeignPluginTest, AnExitInAStepNamesThePlugin) {
  const RunText run =
      RunText()
          .Set("train_data",
               "[plugin/acme.faulty.Config] { broken_sample: 19 exit: true }")
          .Ddp(1)
          .Batch(2, 4)
          .Train("max_steps: 12")
          .Output(NewTestFolder("run") + "/out");
  const std::vector<std::string> words = {
      "--config=" + run.File(),
      "--plugin_path=" + PluginFolder("libacme_faulty.so")};
  const auto said = AllOf(HasSubstr("step "), HasSubstr("exit(0) was called"),
                          HasSubstr("train_data acme.faulty"));
  const TrainerResult launched = RunTrainer(words);
  EXPECT_EQ(launched.exit_code, 1);
  EXPECT_THAT(launched.err, AllOf(HasSubstr("ERROR: "), said));
}

TEST(ForeignPluginTest, ACrashIsToldWithTheFramesOfThePlugin) {
  const RunText run =
      RunText()
          .Set("train_data",
               "[plugin/acme.faulty.Config] { broken_sample: 19 crash: true }")
          .Ddp(2)
          .Batch(2, 8)
          .Train("max_steps: 12")
          .Output(NewTestFolder("run") + "/out");
  const TrainerResult result =
      RunTrainer({"--config=" + run.File(),
                  "--plugin_path=" + PluginFolder("libacme_faulty.so")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("SIGSEGV on rank 1 in step "),
          HasSubstr("train_data acme.faulty"),
          HasSubstr("  in acme::faulty::Crash() (libacme_faulty.so+0x"),
          HasSubstr("  in acme::faulty::Faulty::Read() (libacme_faulty.so+0x"),
          HasSubstr("[rank 1] killed by signal 11 (SIGSEGV)")));
}

// Rank 1's second forward of an evaluation fails; the other rank is in it.
TEST_P(FaultyReaderTest, AFailureInAnEvaluationEndsAllToo) {
  const RunText run =
      RunText()
          .Set("eval_data", "[plugin/acme.faulty.Config] { broken_sample: 7 }")
          .Strategy(GetParam(), 2)
          .Batch(2, 8)
          .Train("max_steps: 12 eval_every: 2 eval_batches: 16")
          .Output(NewTestFolder("run") + "/out");
  const TrainerResult result =
      RunTrainer({"--config=" + run.File(),
                  "--plugin_path=" + PluginFolder("libacme_faulty.so")});
  ExpectOneError(result, {"[rank 1]", "evaluation", "sample 7 is damaged"});
  EXPECT_LT(result.seconds, 100.0);
}

INSTANTIATE_TEST_SUITE_P(All, FaultyReaderTest,
                         ::testing::Values("ddp", "zero2", "fsdp"));

// Its dtypes are no secret to the strategies, which say what they can't.
TEST_P(FaultyReaderTest, APrecisionThatTheStrategyCannotDoIsRefused) {
  const RunText run = RunText()
                          .Set("precision", "[plugin/acme.wide.Config] {}")
                          .Strategy(GetParam(), 2);
  const TrainerResult result =
      RunTrainer({"check", "--config=" + run.File(),
                  "--plugin_path=" + PluginFolder("libacme_wide.so")});
  ExpectOneError(result, {"run.pbtxt:", "strategy",
                          "the precision asks for computing in Double"});
}

TEST(ForeignPluginTest, IsListed) {
  const TrainerResult with =
      RunTrainer({"plugins", "--plugin_path=" + PluginFolder()});
  EXPECT_EQ(with.exit_code, 0) << with.err;
  EXPECT_THAT(with.out, AllOf(HasSubstr("acme.signsgd.Config"),
                              HasSubstr("steps of one size in every direction"),
                              HasSubstr("capstan.llama.Config")));
  const TrainerResult without = RunTrainer({"plugins"});
  EXPECT_THAT(without.out, Not(HasSubstr("acme")));
}

}  // namespace
}  // namespace capstan
