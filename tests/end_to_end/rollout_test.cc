// SPDX-License-Identifier: Apache-2.0
//
// An objective from elsewhere (tests/plugins/acme/replay) that trains on what
// the model writes, and has a state on each rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/told_end.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

constexpr char kWeights[] = "/final/model.safetensors";

std::string PluginPath() {
  const std::string library = Runfile("tests/plugins/acme/libacme_replay.so");
  return "--plugin_path=" + library.substr(0, library.rfind('/'));
}

RunText ReplayRun(const std::string& strategy, int ranks,
                  const std::string& fields = "") {
  return RunText()
      .Set("objective",
           absl::StrCat("[plugin/acme.replay.Config] { new_tokens: 6 sampled: "
                        "true own_curve: 0.5 ",
                        fields, " }"))
      .Set("train_data", TextData(CorpusPiece(40 * 16), 16, "shuffle: true"))
      .Strategy(strategy, ranks)
      .Batch(2, 12)
      .Train("max_steps: 8");
}

std::string MustReplay(RunText run) {
  if (run.output().empty()) run.Output(NewTestFolder("run") + "/out");
  const TrainerResult result =
      RunTrainer({"--config=" + run.File(), PluginPath()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return run.output();
}

TrainerResult Replay(const RunText& run) {
  return RunTrainer({"--config=" + run.File(), PluginPath()});
}

void ExpectSameRun(const std::string& folder, const std::string& straight) {
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

class ReplayTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ReplayTest, AKilledRunGoesOnToTheBit) {
  const RunText base = ReplayRun(GetParam(), 2);
  const std::string straight = MustReplay(base);
  ASSERT_EQ(ReadMetrics(straight).losses().size(), 8);
  const RunText run =
      RunText(base)
          .Train("max_steps: 1000000 save_every: 1 resume: AUTO")
          .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File(), PluginPath()});
  ASSERT_TRUE(process.WaitUntil([&] { return NewestStep(run.output()) >= 2; }))
      << process.Wait().err;
  for (const pid_t rank : process.Children()) kill(rank, SIGKILL);
  process.Signal(SIGKILL);
  EXPECT_TRUE(process.Wait().all_gone);
  // Any number of steps may have been done since.
  const int64_t last = NewestStep(run.output()) + 3;
  MustReplay(RunText(run).Train(absl::StrCat("max_steps: ", last)));
  ExpectSameRun(
      run.output(),
      MustReplay(RunText(base).Train(absl::StrCat("max_steps: ", last))));
}

// From the mirror, which has each rank's state, too.
TEST_P(ReplayTest, AKilledRankGoesOnFromTheMirror) {
  const RunText base = ReplayRun(GetParam(), 2);
  const RunText run = RunText(base)
                          .Train(kUntilTold)
                          .Set("launch", "processes: 2 max_restarts: 3")
                          .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File(), PluginPath()});
  ASSERT_TRUE(process.WaitUntil([&] {
    return CountLines(run.output() + "/metrics.jsonl") >= 5;
  })) << process.Wait().err;
  const std::vector<pid_t> ranks = process.Children();
  ASSERT_EQ(ranks.size(), 2);
  kill(ranks[1], SIGKILL);
  ASSERT_TRUE(process.WaitUntil([&] {
    return absl::StrContains(process.Out(), "restarted from step ");
  })) << process.Wait().err;
  const int64_t end = EndAfter(30, run.output(), &process);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ExpectSameRun(
      run.output(),
      MustReplay(RunText(base).Train(absl::StrCat("max_steps: ", end))));
}

TEST_P(ReplayTest, GoesOnOnAnotherNumberOfRanks) {
  RunText run = ReplayRun(GetParam(), 2);
  run.Output(MustReplay(RunText(run).Train("max_steps: 3")));
  run.Strategy(GetParam(), 3).Train("max_steps: 6 resume: AUTO");
  EXPECT_EQ(ReadMetrics(MustReplay(run)).losses().size(), 6);
}

TEST_P(ReplayTest, AnErrorOnOneRankNamesThePlugin) {
  for (const auto& [fault, words] :
       {std::pair<const char*, const char*>{"THROW", "no reward"},
        {"ERROR", "the rewards are lost"},
        {"DROP_ROW", "returned another number of rows of 'input_ids'"},
        {"DROP_BATCH", "their number must stay"}}) {
    RunText run =
        ReplayRun(GetParam(), 2, absl::StrCat("rank: 1 step: 3 fault: ", fault))
            .Train("save_every: 1")
            .Output(NewTestFolder("run") + "/out");
    const TrainerResult result = Replay(run);
    ExpectOneError(result, {"[rank 1]", "step 3",
                            "objective acme.replay, Rollout: ", words});
    EXPECT_LT(result.seconds, 100.0);
    EXPECT_EQ(CheckpointSteps(run.output()).back(), 2);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ReplayTest, ::testing::Values("ddp", "fsdp"));

// Its curve depends on the ranks, so that another strategy's isn't the same.
TEST(ReplayIdentityTest, AnotherStrategyMustBeAskedFor) {
  RunText run = ReplayRun("ddp", 2);
  run.Output(MustReplay(RunText(run).Train("max_steps: 3")));
  run.Strategy("zero2", 2).Train("max_steps: 6 resume: AUTO");
  ExpectOneError(Replay(run), {"strategy: capstan.ddp -> capstan.zero2",
                               "train.resume_with_changes: [\"strategy\"]"});
  MustReplay(RunText(run).Train("resume_with_changes: \"strategy\""));
}

TEST(ReplayIdentityTest, AnotherObjectiveGetsNoneOfItsState) {
  RunText run = ReplayRun("ddp", 2);
  run.Output(MustReplay(RunText(run).Train("max_steps: 3")));
  run.Train("max_steps: 6 resume: AUTO")
      .Set("objective", "[plugin/capstan.causal_lm.Config] {}");
  ExpectOneError(Replay(run),
                 {"objective: acme.replay", "-> capstan.causal_lm"});
  MustReplay(RunText(run).Train(
      "resume_with_changes: [ \"objective\", \"strategy\" ]"));
}

TEST(ReplayIdentityTest, AStateThatItCannotReadNamesTheFile) {
  RunText run = ReplayRun("ddp", 2, "version: 1");
  run.Output(MustReplay(RunText(run).Train("max_steps: 3")));
  RunText other = ReplayRun("ddp", 2, "version: 2").Output(run.output());
  other.Train("max_steps: 6 resume: AUTO resume_with_changes: \"objective\"");
  ExpectOneError(Replay(other), {"step-00000003/state-0000",
                                 "objective acme.replay, RestoreState: "
                                 "isn't a state of this version",
                                 "start anew in another output_dir"});
}

// It bounds the differences of all runs.
TEST(ReplayCompareTest, ItsOwnCurveIsTheBound) {
  const auto compare = [](const char* bound) {
    const std::string folder = NewTestFolder("compare");
    WriteText(folder + "/run.pbtxt",
              RunText(ReplayRun("ddp", 2))
                  .Set("objective",
                       absl::StrCat("[plugin/acme.replay.Config] { new_tokens: "
                                    "6 own_curve: ",
                                    bound, " }"))
                  .Text());
    WriteText(folder + "/mine.pbtxt",
              "config: \"run.pbtxt\"\noutput_dir: \"out\"\n"
              "strategy { [plugin/capstan.ddp.Config] {} }\n"
              "processes: [1, 2]\n");
    return RunTrainer(
        {"compare", "--config=" + folder + "/mine.pbtxt", PluginPath()});
  };
  const TrainerResult wide = compare("100.0");
  EXPECT_EQ(wide.exit_code, 0) << wide.err << wide.out;
  ExpectOneError(compare("1e-12"), {"ddp fp32 on 2 ranks", "loss", "1e-12"});
}

TEST(ReplayConfigTest, AutoIsRefused) {
  const RunText run =
      ReplayRun("ddp", 2)
          .Set("batch", "micro_batch_size: AUTO global_batch_size: 12")
          .Output(NewTestFolder("run") + "/out");
  ExpectOneError(Replay(run), {"micro_batch_size", "rollouts", "set a number"});
}

}  // namespace
}  // namespace capstan
