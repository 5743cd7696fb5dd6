// SPDX-License-Identifier: Apache-2.0
//
// RANK and WORLD_SIZE: torchrun, Ray, pods, and by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "cluster/launch/place.h"
#include "cluster/launch/place_for_test.h"

namespace capstan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Rank 5 of two agents of four.
const Environment& Torchrun() {
  static const auto* const environment =
      new Environment{{"RANK", "5"},
                      {"WORLD_SIZE", "8"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "4"},
                      {"GROUP_RANK", "1"},
                      {"GROUP_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "node0"},
                      {"MASTER_PORT", "29500"},
                      {"TORCHELASTIC_RESTART_COUNT", "2"},
                      {"TORCHELASTIC_RUN_ID", "job-7"},
                      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                      {"OMP_NUM_THREADS", "3"}};
  return *environment;
}

TEST(Torchrun, PlacesEachRank) {
  const auto place = PlaceIn(Torchrun());
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_FALSE(place->forks);
  EXPECT_TRUE(place->may_train.ok());
  const RankInfo& info = place->info;
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.world_size, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 4);
  EXPECT_EQ(info.node_rank, 1);
  EXPECT_EQ(info.nodes, 2);
  EXPECT_EQ(info.master_addr, "node0");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_EQ(info.run_key, "torchrun-job-7-node0-29500-restart-2");
  EXPECT_TRUE(info.agent_store);
  EXPECT_EQ(info.listen_fd, -1);
  EXPECT_EQ(info.threads, 3);
  EXPECT_EQ(PlaceText(info), "torchrun: run job-7, node 1 of 2, rank 5 of 8");
}

TEST(Torchrun, WithoutItsAgentsStoreAndWithoutAnId) {
  const auto place =
      PlaceIn(With(Torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                {"TORCHELASTIC_RUN_ID", "none"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_FALSE(place->info.agent_store);
  EXPECT_EQ(PlaceText(place->info), "torchrun: node 1 of 2, rank 5 of 8");
}

// Whatever started torchrun has left its variables.
TEST(Torchrun, IsTheInnermost) {
  for (const Environment& outer :
       {Environment{{"SLURM_PROCID", "1"},
                    {"SLURM_JOB_ID", "7"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "16"}},
        Environment{{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}},
        Environment{{"SKYPILOT_NODE_RANK", "1"},
                    {"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2"}}}) {
    const auto place = PlaceIn(With(Torchrun(), outer));
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(PlaceText(place->info),
              "torchrun: run job-7, node 1 of 2, rank 5 of 8");
  }
}

TEST(RankVariables, OneMachineNeedsNoLocalPlace) {
  const auto place = PlaceIn({{"RANK", "1"},
                              {"WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.local_rank, 1);
  EXPECT_EQ(place->info.local_world_size, 2);
  EXPECT_EQ(place->info.nodes, 1);
  EXPECT_GE(place->info.threads, 1);
  EXPECT_EQ(place->info.run_key, "rank-29500");
}

TEST(RankVariables, OneRankNeedsNoMaster) {
  const auto place = PlaceIn({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_FALSE(place->forks);
  EXPECT_EQ(place->info.world_size, 1);
}

// Some set no LOCAL_WORLD_SIZE: it may be one host or several.
TEST(RankVariables, ALocalRankAloneMayBeOfSeveralHosts) {
  Environment environment = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "10.9.8.7"},
                             {"MASTER_PORT", "29500"}};
  auto place = PlaceIn(environment);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.local_rank, 1);
  EXPECT_GT(place->info.nodes, 1);
  EXPECT_EQ(place->info.node_rank, -1);
  place = PlaceIn(With(environment, {{"MASTER_ADDR", "localhost"}}));
  EXPECT_EQ(place->info.nodes, 1);
}

// Otherwise rank 0 would listen where other hosts can reach it, too.
TEST(RankVariables, OnLoopbackAllRanksAreOfOneHost) {
  const Environment environment = {{"RANK", "0"},
                                   {"WORLD_SIZE", "2"},
                                   {"LOCAL_RANK", "0"},
                                   {"LOCAL_WORLD_SIZE", "1"},
                                   {"MASTER_PORT", "29500"},
                                   {"MASTER_ADDR", "127.0.0.1"}};
  auto place = PlaceIn(environment);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.nodes, 1);
  EXPECT_EQ(place->info.local_world_size, 1);
  // As the others' name for it may be another.
  place = PlaceIn(With(environment, {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"}}));
  EXPECT_EQ(place->info.nodes, 2);
  place = PlaceIn(With(environment, {{"MASTER_ADDR", "10.9.8.7"}}));
  EXPECT_EQ(place->info.nodes, 2);
}

// PyTorchJob before it set PET_*: LOCAL_RANK = RANK would have pod 1 ask for
// GPU 1.
TEST(RankVariables, APodIsAHost) {
  const Environment pod = {{"KUBERNETES_SERVICE_HOST", "10.0.0.1"},
                           {"WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "job-master-0"},
                           {"MASTER_PORT", "23456"}};
  auto place = PlaceIn(With(pod, {{"RANK", "1"}}), {}, /*gpus=*/1);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.local_rank, 0);
  EXPECT_EQ(place->info.GpuIndex(), 0);
  EXPECT_EQ(place->info.local_world_size, 1);
  EXPECT_EQ(PlaceText(place->info), "Kubernetes: node 1 of 2, rank 1 of 2");
  const std::string run_key = place->info.run_key;
  place = PlaceIn(With(pod, {{"RANK", "0"}, {"MASTER_ADDR", "localhost"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.local_world_size, 1);
  EXPECT_EQ(place->info.nodes, 2);
  EXPECT_EQ(place->info.run_key, run_key);
}

TEST(RankVariables, SeveralRanksOfOneHostMustSaySo) {
  char name[256] = "";
  ASSERT_EQ(gethostname(name, sizeof(name) - 1), 0);
  if (std::string(name) == "localhost") GTEST_SKIP() << "a host without a name";
  Environment environment = {{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"MASTER_ADDR", name},
                             {"MASTER_PORT", "29500"}};
  EXPECT_THAT(ErrorIn(environment),
              AllOf(HasSubstr("LOCAL_RANK is not set"),
                    HasSubstr("MASTER_ADDR"), HasSubstr("LOCAL_WORLD_SIZE")));
}

// Ray Train's torch backend has a store of its own at MASTER_PORT.
TEST(Ray, RanksInsidePythonWorkers) {
  Environment worker = {{"RANK", "3"},
                        {"WORLD_SIZE", "4"},
                        {"LOCAL_RANK", "1"},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"NODE_RANK", "1"},
                        {"ACCELERATE_TORCH_DEVICE", "cpu"},
                        {"MASTER_ADDR", "10.0.0.5"},
                        {"MASTER_PORT", "40001"},
                        {"RAY_JOB_ID", "01000000"},
                        {"RAY_RAYLET_PID", "12"}};
  auto place = PlaceIn(worker);
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.rank, 3);
  EXPECT_EQ(place->info.local_rank, 1);
  EXPECT_EQ(place->info.master_addr, "10.0.0.5");
  EXPECT_EQ(place->info.master_port, 0);
  EXPECT_EQ(place->info.run_key, "ray-01000000-10.0.0.5-40001");
  EXPECT_EQ(PlaceText(place->info), "Ray: rank 3 of 4");
  // Actors that only set the variables.
  place = PlaceIn(With(worker, {{"ACCELERATE_TORCH_DEVICE", ""}}));
  EXPECT_EQ(place->info.master_port, 40001);
}

TEST(RankVariables, AWrapperWinsOverSrunAndMpirun) {
  const Environment wrapper = {{"RANK", "1"},
                               {"WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "10.9.8.7"},
                               {"MASTER_PORT", "29500"}};
  for (const Environment& outer :
       {Environment{{"SLURM_STEP_NUM_TASKS", "4"}},
        Environment{{"OMPI_COMM_WORLD_SIZE", "4"},
                    {"OMPI_COMM_WORLD_RANK", "3"}},
        // One srun task a host, which starts several ranks.
        Environment{{"SLURM_STEP_NUM_TASKS", "2"}}}) {
    const auto place = PlaceIn(With(wrapper, outer));
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(place->info.rank, 1);
    EXPECT_EQ(place->info.world_size, 4);
  }
}

// RANK=0 WORLD_SIZE=1 in a batch script's environment would be each task's.
TEST(RankVariables, FewerRanksThanTasksContradict) {
  const Environment alone = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_THAT(
      ErrorIn(With(alone, {{"SLURM_STEP_NUM_TASKS", "4"}})),
      AllOf(HasSubstr("WORLD_SIZE is 1"),
            HasSubstr("SLURM_STEP_NUM_TASKS is 4"), HasSubstr("unset RANK")));
  EXPECT_THAT(ErrorIn(With(alone, {{"OMPI_COMM_WORLD_SIZE", "2"}})),
              HasSubstr("OMPI_COMM_WORLD_SIZE is 2"));
  EXPECT_THAT(
      ErrorIn(With(alone, {{"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}})),
      HasSubstr("PMI_SIZE is 2"));
  EXPECT_THAT(ErrorIn(With(alone, {{"SLURM_STEP_NUM_TASKS", "1"}})), IsEmpty());
}

TEST(RankVariables, NamesWhatIsWrong) {
  Environment good = {{"RANK", "1"},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", "29500"}};
  ASSERT_THAT(ErrorIn(good), IsEmpty());
  struct Case {
    const char* name;
    const char* value;  // "": not set
    const char* error;
  };
  for (const Case& c : {
           Case{"RANK", "one", "RANK must be an integer, is \"one\""},
           Case{"RANK", "1.5", "RANK must be an integer"},
           Case{"RANK", "4", "RANK must be less than 4, is 4"},
           Case{"RANK", "-1", "RANK must be at least 0"},
           Case{"RANK", "", "RANK is not set, but WORLD_SIZE is"},
           Case{"WORLD_SIZE", "", "WORLD_SIZE is not set, but RANK is"},
           Case{"WORLD_SIZE", "0", "WORLD_SIZE must be at least 1"},
           Case{"LOCAL_RANK", "2", "LOCAL_RANK must be less than 2"},
           Case{"LOCAL_RANK", "", "LOCAL_RANK is not set"},
           Case{"LOCAL_WORLD_SIZE", "5", "must be at most WORLD_SIZE (4)"},
           Case{"MASTER_ADDR", "", "MASTER_ADDR is not set"},
           Case{"MASTER_PORT", "", "MASTER_PORT is not set"},
           Case{"MASTER_PORT", "70000", "MASTER_PORT must be less than 65536"},
           Case{"OMP_NUM_THREADS", "0", "OMP_NUM_THREADS must be at least 1"},
           Case{"CAPSTAN_RUN_TOKEN", "two words", "no spaces"},
       }) {
    EXPECT_THAT(ErrorIn(With(good, {{c.name, c.value}})), HasSubstr(c.error))
        << c.name;
  }
}

TEST(RankVariables, AToken) {
  const auto place = PlaceIn({{"RANK", "0"},
                              {"WORLD_SIZE", "1"},
                              {"CAPSTAN_RUN_TOKEN", "0123456789abcdef"}});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.token, "0123456789abcdef");
}

TEST(RankVariables, RanksThatSeeOneGpuEach) {
  Environment environment = {{"RANK", "1"},
                             {"WORLD_SIZE", "2"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "127.0.0.1"},
                             {"MASTER_PORT", "29500"}};
  EXPECT_EQ(PlaceIn(environment, {}, 2)->info.GpuIndex(), 1);
  EXPECT_EQ(PlaceIn(environment, {}, 1)->info.GpuIndex(), 1);  // refused later
  // Both may mean the same one, if that is all there is.
  EXPECT_EQ(PlaceIn(environment, {}, 1, 1)->info.GpuIndex(), 1);
  EXPECT_EQ(PlaceIn(environment, {}, 1, 2)->info.GpuIndex(), 0);
  for (const auto& [name, value] :
       std::vector<std::pair<const char*, const char*>>{
           {"CUDA_VISIBLE_DEVICES", "1"},
           {"CUDA_VISIBLE_DEVICES", "MIG-1"},
           {"SLURM_GPUS_PER_TASK", "1"},
           {"SLURM_TRES_PER_TASK", "cpu=4,gres/gpu=1"}}) {
    EXPECT_EQ(
        PlaceIn(With(environment, {{name, value}}), {}, 1)->info.GpuIndex(), 0)
        << name;
    EXPECT_EQ(PlaceIn(With(environment,
                           {{name, value}, {"TORCHELASTIC_RUN_ID", "x"}}),
                      {}, 1)
                  ->info.GpuIndex(),
              1)
        << name;
  }
}

}  // namespace
}  // namespace capstan
