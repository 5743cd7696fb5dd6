// SPDX-License-Identifier: Apache-2.0
//
// Ranks that somebody else starts, with torchrun's environment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/placed_ranks.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

RunText SmallRun() { return RunText().Ddp(2).Batch(2, 8); }

TEST(TorchrunTest, TrainsAsTheLauncherDoes) {
  const std::string launched = MustTrain(SmallRun());
  // Here the environment says how many ranks there are.
  const RunText run = SmallRun()
                          .Set("launch", "processes: 5")
                          .Output(NewTestFolder("run") + "/out");
  for (const TrainerResult& result : RunPlacedRanks(2, run.File())) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_TRUE(result.all_gone);
  }
  EXPECT_EQ(ReadMetrics(run.output()).losses(), ReadMetrics(launched).losses());
  const std::string weights = "/final/model.safetensors";
  EXPECT_TRUE(ReadText(run.output() + weights) == ReadText(launched + weights));
}

// Rank 0 settles the folder for all.
TEST(TorchrunTest, WithoutOutputDir) {
  const std::string folder = NewTestFolder("workspace");
  WriteText(folder + "/WORKSPACE", "");
  TrainerOptions options;
  options.folder = folder;
  for (const TrainerResult& result :
       RunPlacedRanks(2, SmallRun().Train("max_steps: 1").File(), options)) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  const std::string latest = LatestRun(folder + "/runs/run");
  EXPECT_EQ(CheckpointSteps(latest).size(), 1);
  int runs = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder + "/runs/run")) {
    runs += entry.is_directory() ? 1 : 0;
  }
  EXPECT_EQ(runs, 1);
}

TEST(TorchrunTest, ABadOutputFolderEndsAllRanks) {
  const std::string folder = MustTrain(SmallRun());
  const auto before = Snapshot(folder);
  const std::vector<TrainerResult> results =
      RunPlacedRanks(2, SmallRun().Output(folder).File());
  ExpectOneError(results[0], {"output_dir", folder, "resume: AUTO"});
  ExpectOneError(results[1], {"rank 0 could not"});
  EXPECT_EQ(Snapshot(folder), before);
}

TEST(TorchrunTest, TheLineThatOneConfigHasMoreIsNamed) {
  const RunText run = SmallRun().Output(NewTestFolder("run") + "/out");
  const int port = FreePort();
  TrainerProcess first({"--config=" + run.File()}, PlacedRank(0, 2, port));
  TrainerProcess second(
      {"--config=" + RunText(run).Train("log_every: 3").File()},
      PlacedRank(1, 2, port));
  ExpectOneError(second.Wait(),
                 {"rank 1 has another config than rank 0: `log_every: 3` where "
                  "rank 0 has `nothing`"});
  EXPECT_EQ(first.Wait().exit_code, 1);
}

TEST(TorchrunTest, ARankThatIsKilledEndsTheOthers) {
  const RunText run = SmallRun()
                          .Train("max_steps: 1000000")
                          .Output(NewTestFolder("run") + "/out");
  const int port = FreePort();
  const std::vector<std::string> args = {"--config=" + run.File()};
  TrainerProcess first(args, PlacedRank(0, 2, port));
  TrainerProcess second(args, PlacedRank(1, 2, port));
  ASSERT_TRUE(first.WaitForFile(run.output() + "/metrics.jsonl"));
  usleep(50000);
  second.Signal(SIGKILL);
  EXPECT_EQ(second.Wait().term_signal, SIGKILL);
  const double before = first.Seconds();
  const TrainerResult result = first.Wait();
  EXPECT_LT(result.seconds - before, 15.0) << "before a watchdog's limit";
  ExpectOneError(result, {"rank 0"});
}

TEST(TorchrunTest, AResumedRunKeepsItsGlobalBatch) {
  const RunText run = RunText().Ddp(1).Set("batch", "micro_batch_size: 4");
  const std::string folder = MustTrain(RunText(run).Train("max_steps: 2"));
  const std::vector<TrainerResult> results = RunPlacedRanks(
      2, RunText(run).Train("max_steps: 4 resume: AUTO").Output(folder).File());
  for (const TrainerResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  EXPECT_THAT(results[0].out,
              ::testing::HasSubstr("goes on with the run's global batch of 4 = "
                                   "micro 2 x 2 ranks x accumulation 1"));
  const std::string straight = MustTrain(RunText(run).Train("max_steps: 4"));
  const std::vector<double> want = ReadMetrics(straight).losses();
  const std::vector<double> got = ReadMetrics(folder).losses();
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-6 * want[i]);
  }
}

TEST(TorchrunTest, IncompleteEnvironment) {
  TrainerOptions options;
  options.environment = {{"RANK", "0"}};
  ExpectOneError(RunTrainer({"--config=" + SmallRun().File()}, options),
                 {"WORLD_SIZE", "is not set"});
}

// Nothing may be made where ranks would wait for others in vain.
TEST(TorchrunTest, TasksThatSrunHasNotPlaced) {
  TrainerOptions options;
  options.environment = {{"SLURM_JOB_ID", "7"},
                         {"SLURM_NTASKS", "2"},
                         {"SLURM_PROCID", "1"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "2"}};
  const RunText run =
      RunText().Train("max_steps: 1").Output(NewTestFolder("run") + "/out");
  ExpectOneError(
      RunTrainer({"--config=" + run.File()}, options),
      {"SLURM_STEP_NODELIST is not set", "SLURM_STEP_NUM_TASKS is 2", "srun"});
  // A batch script without srun, which a config may be checked in.
  options.environment = {{"SLURM_JOB_ID", "7"},
                         {"SLURM_NTASKS", "2"},
                         {"SLURM_NNODES", "1"},
                         {"SLURM_PROCID", "0"}};
  const RunText automatic = RunText(run).Set("launch", "");
  ExpectOneError(RunTrainer({"--config=" + automatic.File()}, options),
                 {"SLURM_NTASKS is 2", "SLURM_STEP_NODELIST is not set",
                  "start it with srun"});
  EXPECT_FALSE(std::filesystem::exists(run.output()));
  EXPECT_EQ(RunTrainer({"check", "--config=" + run.File()}, options).exit_code,
            0);
  // Unless it says itself how many ranks there are.
  MustTrain(run, options);
}

TEST(TorchrunTest, FlagsOfSeveralHosts) {
  const std::string config = "--config=" + SmallRun().File();
  ExpectOneError(RunTrainer({config, "--nodes=2"}),
                 {"launch.node_rank", "nodes is 2", "--node_rank=0"});
  ExpectOneError(RunTrainer({config, "--nodes=2", "--node_rank=1"}),
                 {"launch.rendezvous", "--rendezvous=HOST:PORT"});
  TrainerOptions options = PlacedRank(0, 2, FreePort());
  ExpectOneError(
      RunTrainer({config, "--nodes=2", "--node_rank=1", "--rendezvous=n1:1"},
                 options),
      {"--nodes=2: is 2", "RANK is 0"});
  // Flags are named as they were typed, and `check` has them, too.
  for (const char* command : {"train", "check"}) {
    ExpectOneError(RunTrainer({command, config, "--nodes=2", "--node_rank=5",
                               "--rendezvous=n1:1"}),
                   {"ERROR: --node_rank=5: must be from 0 to 1, is 5"});
    const TrainerResult none = RunTrainer({command, config, "--nodes=0"});
    EXPECT_EQ(none.exit_code, 2);
    EXPECT_THAT(
        none.err,
        testing::HasSubstr("--nodes: must be a number greater than 0, is 0"));
  }
  EXPECT_EQ(RunTrainer({"check", config, "--nodes=2", "--node_rank=1",
                        "--rendezvous=n1:1"})
                .exit_code,
            0);
}

TEST(TorchrunTest, AScriptsLauncherInAnyCase) {
  const std::string config = "--config=" + SmallRun().File();
  const TrainerResult script =
      RunTrainer({"script", "--for=SLURM", config, "--set", "launch="});
  EXPECT_EQ(script.exit_code, 0) << script.err;
  EXPECT_THAT(script.out, testing::HasSubstr("launch.processes=2"));
  ExpectOneError(
      RunTrainer(
          {"script", "--for=slurm", "--gpus", config, "--set", "launch="}),
      {"--processes isn't given", "how many GPUs a node of the cluster has"});
}

// One host of one, as a single-node job has it: our launcher's ranks, shown as
// its.
TEST(TorchrunTest, ANodeOfKubeflow) {
  TrainerOptions options;
  options.environment = {
      {"PET_NNODES", "1"}, {"PET_NODE_RANK", "0"}, {"PET_NPROC_PER_NODE", "2"}};
  const RunText run =
      SmallRun().Set("launch", "").Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              ::testing::HasSubstr("placed by     Kubeflow Trainer: node 0 of "
                                   "1, rank 0 of 2\n"));
  EXPECT_EQ(ReadMetrics(run.output()).losses(),
            ReadMetrics(MustTrain(SmallRun())).losses());
}

}  // namespace
}  // namespace capstan
