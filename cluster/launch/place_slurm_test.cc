// SPDX-License-Identifier: Apache-2.0
//
// Environments as srun, sbatch and salloc of SLURM 22.05 make them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/machine.h"
#include "cluster/launch/place.h"
#include "cluster/launch/place_for_test.h"

namespace capstan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Task 3 of four on two hosts, three of them on the first.
const Environment& Task() {
  static const auto* const environment =
      new Environment{{"SLURM_JOB_ID", "7"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.99"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NNODES", "2"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_PROCID", "3"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEPID", "0"},
                      {"SLURM_STEP_NODELIST", "n[0-1]"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_NUM_TASKS", "4"},
                      {"SLURM_STEP_TASKS_PER_NODE", "3,1"}};
  return *environment;
}

// `srun --nodes=2 --ntasks-per-node=1`, on the second host.
Environment OneTaskAHost() {
  return With(Task(), {{"SLURM_NTASKS", "2"},
                       {"SLURM_PROCID", "1"},
                       {"SLURM_STEP_NUM_TASKS", "2"},
                       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
}

TEST(Slurm, UnevenTasks) {
  auto place = PlaceIn(Task());
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_FALSE(place->forks);
  EXPECT_TRUE(place->may_train.ok());
  const RankInfo& info = place->info;
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_EQ(info.local_rank, 0);
  EXPECT_EQ(info.local_world_size, 1);
  EXPECT_EQ(info.node_rank, 1);
  EXPECT_EQ(info.nodes, 2);
  // Not srun's host.
  EXPECT_EQ(info.master_addr, "n0");
  EXPECT_EQ(info.master_port, 0);
  EXPECT_EQ(info.run_key, "slurm-7.0");
  EXPECT_EQ(PlaceText(info), "SLURM: job 7, node 1 of 2, rank 3 of 4");
  place = PlaceIn(With(
      Task(),
      {{"SLURM_PROCID", "2"}, {"SLURM_LOCALID", "2"}, {"SLURM_NODEID", "0"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.local_rank, 2);
  EXPECT_EQ(place->info.local_world_size, 3);
}

TEST(Slurm, ARequeuedJobIsAnotherRun) {
  const auto place = PlaceIn(With(Task(), {{"SLURM_RESTART_COUNT", "1"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.run_key, "slurm-7.0-restart-1");
}

TEST(Slurm, AnAddressByTheUser) {
  auto place = PlaceIn(
      With(Task(), {{"MASTER_ADDR", "ib-n0"}, {"MASTER_PORT", "5000"}}));
  EXPECT_EQ(place->info.master_addr, "ib-n0");
  EXPECT_EQ(place->info.master_port, 5000);
  // Half of it: an address may be the cluster's default, a port is the run's.
  place = PlaceIn(With(Task(), {{"MASTER_ADDR", "login"}}));
  EXPECT_EQ(place->info.master_addr, "n0");
  place = PlaceIn(With(Task(), {{"MASTER_PORT", "5000"}}));
  EXPECT_EQ(place->info.master_addr, "n0");
  EXPECT_EQ(place->info.master_port, 5000);
  LaunchSettings settings;
  settings.rendezvous = "n0-ib:6000";
  place = PlaceIn(Task(), settings);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.master_addr, "n0-ib");
  EXPECT_EQ(place->info.master_port, 6000);
}

// With a hostfile the list of hosts is sorted, and task 0 anywhere.
TEST(Slurm, AHostfileHidesRank0) {
  const auto place =
      PlaceIn(With(Task(), {{"SLURM_DISTRIBUTION", "arbitrary"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.master_addr, "");
}

TEST(Slurm, OneHost) {
  const auto place =
      PlaceIn(With(Task(), {{"SLURM_STEP_NODELIST", "n1"},
                            {"SLURM_STEP_NUM_NODES", "1"},
                            {"SLURM_NODEID", "0"},
                            {"SLURM_LOCALID", "3"},
                            {"SLURM_STEP_TASKS_PER_NODE", "4"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.nodes, 1);
  EXPECT_EQ(place->info.local_rank, 3);
  EXPECT_EQ(place->info.master_addr, "127.0.0.1");
  EXPECT_EQ(place->info.master_port, 0);
}

TEST(Slurm, CoresThatAreATasksOwn) {
  const int cores = AvailableCores();
  const auto threads = [](const Environment& changes) {
    return PlaceIn(With(Task(), changes))->info.threads;
  };
  EXPECT_EQ(threads({{"SLURM_CPUS_PER_TASK", "1"}}), 1);
  EXPECT_EQ(threads({{"SLURM_CPUS_PER_TASK", "999"}}), cores);
  EXPECT_EQ(threads({{"SLURM_CPUS_PER_TASK", "1"}, {"OMP_NUM_THREADS", "5"}}),
            5);
  const Environment first = {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}};
  EXPECT_EQ(threads(first), std::max(1, cores / 3));
  EXPECT_EQ(threads(With(first, {{"SLURM_CPU_BIND_TYPE", "mask_cpu:"}})),
            cores);
}

// One task a host: a rank, unless several are wanted on each.
TEST(Slurm, OneTaskAHost) {
  auto place = PlaceIn(OneTaskAHost());
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_FALSE(place->forks);
  EXPECT_EQ(place->info.world_size, 2);
  EXPECT_FALSE(PlaceIn(OneTaskAHost(), {}, /*gpus=*/1)->forks);

  place = PlaceIn(OneTaskAHost(), {}, /*gpus=*/8);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_TRUE(place->forks);
  EXPECT_EQ(place->info.node_rank, 1);
  EXPECT_EQ(place->info.local_world_size, 8);
  EXPECT_EQ(place->info.world_size, 16);
  EXPECT_EQ(place->info.master_addr, "n0");
  EXPECT_EQ(place->info.run_key, "slurm-7.0");

  LaunchSettings settings;
  settings.processes = 3;
  place = PlaceIn(OneTaskAHost(), settings);
  EXPECT_TRUE(place->forks);
  EXPECT_EQ(place->info.world_size, 6);
  // More tasks: srun decides, as torchrun does.
  EXPECT_EQ(PlaceIn(Task(), settings)->info.world_size, 4);
  settings.processes = 1;
  EXPECT_FALSE(PlaceIn(OneTaskAHost(), settings, /*gpus=*/8)->forks);
  settings.processes = 0;
  settings.gpu_ids = {5};
  place = PlaceIn(OneTaskAHost(), settings, /*gpus=*/8);
  EXPECT_FALSE(place->forks);
  EXPECT_EQ(place->info.GpuIndex(), 5);
}

// srun --mpi=pmi2 adds PMI_*.
TEST(Slurm, WithPmi2) {
  const auto place = PlaceIn(With(Task(), {{"PMI_RANK", "3"},
                                           {"PMI_SIZE", "4"},
                                           {"PMI_JOBID", "7.0"},
                                           {"PMI_FD", "11"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(PlaceText(place->info), "SLURM: job 7, node 1 of 2, rank 3 of 4");
  EXPECT_EQ(place->pmi_fd, -1);
}

TEST(Slurm, HalfOrContradictory) {
  const auto error = [](const Environment& changes) {
    return ErrorIn(With(Task(), changes));
  };
  EXPECT_THAT(error({}), IsEmpty());
  for (const char* name :
       {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID",
        "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}) {
    EXPECT_THAT(
        error({{name, ""}}),
        AllOf(HasSubstr(std::string(name) + " is not set"),
              HasSubstr("SLURM_STEP_NUM_TASKS is 4"), HasSubstr("srun")));
  }
  EXPECT_THAT(error({{"SLURM_STEP_NUM_TASKS", ""}}),
              AllOf(HasSubstr("SLURM_STEP_NUM_TASKS is not set"),
                    HasSubstr("SLURM_STEP_NODELIST is \"n[0-1]\"")));
  EXPECT_THAT(error({{"SLURM_STEP_NODELIST", "n[0-2]"}}),
              AllOf(HasSubstr("SLURM_STEP_TASKS_PER_NODE is \"3,1\""),
                    HasSubstr("SLURM_STEP_NODELIST is \"n[0-2]\"")));
  EXPECT_THAT(error({{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                     {"SLURM_STEP_NUM_TASKS", "5"}}),
              AllOf(HasSubstr("SLURM_STEP_TASKS_PER_NODE is \"2(x2)\""),
                    HasSubstr("SLURM_STEP_NUM_TASKS is 5")));
  EXPECT_THAT(error({{"SLURM_STEP_NODELIST", "n[0-"}}),
              HasSubstr("SLURM_STEP_NODELIST can't be read"));
  EXPECT_THAT(error({{"SLURM_STEP_TASKS_PER_NODE", "3;1"}}),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE can't be read"));
  EXPECT_THAT(error({{"SLURM_PROCID", "4"}}),
              HasSubstr("SLURM_PROCID must be less than 4"));
  EXPECT_THAT(error({{"SLURM_LOCALID", "1"}}),
              HasSubstr("SLURM_LOCALID must be less than 1"));
  EXPECT_THAT(error({{"SLURM_STEP_TASKS_PER_NODE", "4,0"}}),
              HasSubstr("SLURM_LOCALID"));
}

// As sbatch leaves it: four tasks are asked for, one script runs.
Environment Batch(const std::string& nodes, const std::string& tasks) {
  return With({{"SLURM_JOB_ID", "7"},
               {"SLURM_LOCALID", "0"},
               {"SLURM_NODEID", "0"},
               {"SLURM_PROCID", "0"}},
              {{"SLURM_NNODES", nodes}, {"SLURM_NTASKS", tasks}});
}

std::string BatchError(const Environment& environment,
                       const LaunchSettings& settings = {}) {
  const auto place = PlaceIn(environment, settings);
  EXPECT_TRUE(place.ok()) << place.status();
  EXPECT_TRUE(place->Alone());
  return ErrorOf(place->may_train);
}

TEST(Slurm, ABatchScriptWithoutSrun) {
  EXPECT_THAT(BatchError(Batch("2", "4")),
              AllOf(HasSubstr("SLURM_NTASKS is 4"),
                    HasSubstr("SLURM_STEP_NODELIST is not set"),
                    HasSubstr("start it with srun")));
  // sbatch --nodes=2 says nothing of tasks.
  EXPECT_THAT(BatchError(Batch("2", "")),
              AllOf(HasSubstr("SLURM_NNODES is 2"),
                    HasSubstr("SLURM_STEP_NODELIST is not set"),
                    HasSubstr("start it with srun")));
  EXPECT_THAT(
      BatchError(Batch("1", "4")),
      AllOf(HasSubstr("SLURM_NTASKS is 4"), HasSubstr("launch.processes")));
  LaunchSettings settings;
  settings.processes = 4;
  EXPECT_THAT(BatchError(Batch("1", "4"), settings), IsEmpty());
  EXPECT_THAT(BatchError(Batch("2", "4"), settings), HasSubstr("srun"));
}

TEST(Slurm, WhereOneProcessIsMeant) {
  EXPECT_THAT(BatchError(Batch("1", "")), IsEmpty());
  EXPECT_THAT(BatchError(Batch("1", "1")), IsEmpty());
  // A shell by salloc, on the login node.
  EXPECT_THAT(BatchError(With(Batch("2", "4"), {{"SLURM_PROCID", ""},
                                                {"SLURM_NODEID", ""},
                                                {"SLURM_LOCALID", ""}})),
              IsEmpty());
  // `srun --nodes=1 --ntasks=1` in a batch script of more.
  EXPECT_THAT(
      BatchError(With(Batch("2", "4"), {{"SLURM_STEP_ID", "0"},
                                        {"SLURM_STEP_NODELIST", "n1"},
                                        {"SLURM_STEP_NUM_TASKS", "1"},
                                        {"SLURM_STEP_TASKS_PER_NODE", "1"}})),
      IsEmpty());
}

}  // namespace
}  // namespace capstan
