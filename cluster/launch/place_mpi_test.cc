// SPDX-License-Identifier: Apache-2.0
//
// Environments as Open MPI 4.1 and 5.0 and MPICH 4.0 and 5.0 make them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/launch/fake_pmi_for_test.h"
#include "cluster/launch/place.h"
#include "cluster/launch/place_for_test.h"

namespace capstan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Rank 2 of four on two hosts, filled one after the other round the hosts.
const Environment& OpenMpi() {
  static const auto* const environment =
      new Environment{{"OMPI_COMM_WORLD_SIZE", "4"},
                      {"OMPI_COMM_WORLD_RANK", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_NODE_RANK", "1"},
                      {"OMPI_MCA_orte_precondition_transports",
                       "d1c4b0851a3f9182-b9978d97250cde29"},
                      {"PMIX_NAMESPACE", "651821057"},
                      {"PMIX_RANK", "2"}};
  return *environment;
}

TEST(OpenMpi, TheLocalRankDoesNotFollowFromTheRank) {
  const auto place = PlaceIn(OpenMpi());
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_FALSE(place->forks);
  const RankInfo& info = place->info;
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.world_size, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.node_rank, -1);
  EXPECT_EQ(info.nodes, 2);
  EXPECT_EQ(info.master_addr, "");
  EXPECT_EQ(info.master_port, 0);
  EXPECT_EQ(info.run_key, "openmpi-651821057");
  EXPECT_EQ(info.token, "d1c4b0851a3f9182-b9978d97250cde29");
  EXPECT_EQ(PlaceText(info), "Open MPI: rank 2 of 4");
}

TEST(OpenMpi, OneHost) {
  const auto place =
      PlaceIn(With(OpenMpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                               {"OMPI_MCA_orte_precondition_transports", ""},
                               {"PMIX_NAMESPACE", "prterun-vm-32723@1"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.nodes, 1);
  EXPECT_EQ(place->info.master_addr, "127.0.0.1");
  EXPECT_EQ(place->info.token, "");
  EXPECT_EQ(place->info.run_key.substr(0, 27), "openmpi-prterun-vm-32723_1-");
  EXPECT_EQ(PlaceText(place->info), "Open MPI: node 0 of 1, rank 2 of 4");
}

TEST(OpenMpi, AnAddressByTheUser) {
  const auto place = PlaceIn(With(OpenMpi(), {{"MASTER_ADDR", "n0"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->info.master_addr, "n0");
  EXPECT_EQ(place->info.master_port, 0);
}

// mpirun has srun start its daemons: SLURM_* are a daemon's.
TEST(OpenMpi, InsideSlurm) {
  const auto place =
      PlaceIn(With(OpenMpi(), {{"SLURM_JOB_ID", "7"},
                               {"SLURM_PROCID", "1"},
                               {"SLURM_LOCALID", "0"},
                               {"SLURM_NODEID", "1"},
                               {"SLURM_STEP_ID", "0"},
                               {"SLURM_STEP_NODELIST", "n[1-2]"},
                               {"SLURM_STEP_NUM_TASKS", "2"},
                               {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(PlaceText(place->info), "Open MPI: rank 2 of 4");
  EXPECT_EQ(place->info.run_key, "openmpi-7-651821057");
}

TEST(OpenMpi, OneTask) {
  // Nor is it a batch script that has forgotten srun.
  const auto place = PlaceIn({{"OMPI_COMM_WORLD_SIZE", "1"},
                              {"OMPI_COMM_WORLD_RANK", "0"},
                              {"PMIX_RANK", "0"},
                              {"SLURM_PROCID", "0"},
                              {"SLURM_NTASKS", "4"}});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_TRUE(place->Alone());
  EXPECT_TRUE(place->may_train.ok()) << place->may_train;
}

TEST(OpenMpi, HalfOfIt) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    EXPECT_THAT(
        ErrorIn(With(OpenMpi(), {{name, ""}})),
        AllOf(HasSubstr(absl::StrCat(name, " is not set")),
              HasSubstr("OMPI_COMM_WORLD_SIZE is 4"), HasSubstr("mpirun")));
  }
  EXPECT_THAT(ErrorIn(With(OpenMpi(), {{"OMPI_COMM_WORLD_SIZE", ""}})),
              AllOf(HasSubstr("OMPI_COMM_WORLD_SIZE is not set"),
                    HasSubstr("OMPI_COMM_WORLD_RANK is 2")));
  EXPECT_THAT(ErrorIn(With(OpenMpi(), {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}})),
              HasSubstr("must be less than 2"));
  EXPECT_THAT(ErrorIn(With(OpenMpi(), {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}})),
              HasSubstr("must be less than 5"));
}

// Numbers its processes, and doesn't say how many there are.
TEST(OpenMpi, Prterun) {
  EXPECT_THAT(
      ErrorIn({{"PMIX_RANK", "1"}, {"PRTE_LAUNCHED", "1"}}),
      AllOf(HasSubstr("PMIX_RANK is set"),
            HasSubstr("OMPI_COMM_WORLD_SIZE is not"), HasSubstr("mpirun")));
}

const Environment& Mpich() {
  static const auto* const environment =
      new Environment{{"PMI_SIZE", "5"},
                      {"PMI_RANK", "3"},
                      {"MPI_LOCALNRANKS", "2"},
                      {"MPI_LOCALRANKID", "1"}};
  return *environment;
}

TEST(Mpich, ByItsEnvironment) {
  auto place = PlaceIn(With(Mpich(), {{"PMI_FD", "9999"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_FALSE(place->forks);
  const RankInfo& info = place->info;
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.world_size, 5);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.local_world_size, 2);
  EXPECT_EQ(info.nodes, 3);
  EXPECT_EQ(info.node_rank, -1);
  EXPECT_EQ(info.master_addr, "");
  EXPECT_EQ(info.run_key, "mpich");
  EXPECT_EQ(PlaceText(info), "MPICH: rank 3 of 5");
  // No socket: a container's runtime may have closed it.
  EXPECT_EQ(place->pmi_fd, -1);
  EXPECT_TRUE(AskLauncher(&*place).ok());
  EXPECT_EQ(place->info.token, "");
}

TEST(Mpich, InsideSlurm) {
  const auto place = PlaceIn(With(Mpich(), {{"SLURM_JOB_ID", "7"},
                                            {"SLURM_PROCID", "1"},
                                            {"SLURM_STEP_ID", "0"},
                                            {"SLURM_STEP_NUM_TASKS", "2"}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(PlaceText(place->info), "MPICH: rank 3 of 5");
  EXPECT_EQ(place->info.run_key, "mpich-7");
}

TEST(Mpich, OneTask) {
  EXPECT_TRUE(PlaceIn({{"PMI_SIZE", "1"}})->Alone());
  EXPECT_TRUE(PlaceIn({{"PMI_SIZE", "1"},
                       {"PMI_RANK", "0"},
                       {"MPI_LOCALNRANKS", "1"},
                       {"MPI_LOCALRANKID", "0"}})
                  ->Alone());
}

TEST(Mpich, HalfOfIt) {
  EXPECT_THAT(ErrorIn({{"PMI_SIZE", "8"}, {"PMI_RANK", "7"}}),
              AllOf(HasSubstr("MPI_LOCALNRANKS is not set"),
                    HasSubstr("PMI_SIZE is 8"), HasSubstr("mpirun")));
  EXPECT_THAT(
      ErrorIn(With(Mpich(), {{"PMI_RANK", ""}})),
      AllOf(HasSubstr("PMI_RANK is not set"), HasSubstr("PMI_SIZE is 5")));
  EXPECT_THAT(
      ErrorIn(With(Mpich(), {{"PMI_SIZE", ""}})),
      AllOf(HasSubstr("PMI_SIZE is not set"), HasSubstr("PMI_RANK is 3")));
}

// Hosts, key and token come from mpiexec.
TEST(AskLauncher, Mpich) {
  constexpr int kRanks = 5;
  FakePmi pmi(kRanks, "(vector,(0,3,2))");
  std::vector<Place> places(kRanks);
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto place = PlaceIn({{"PMI_SIZE", "5"},
                                {"PMI_RANK", absl::StrCat(rank)},
                                {"MPI_LOCALNRANKS", rank < 4 ? "2" : "1"},
                                {"MPI_LOCALRANKID", absl::StrCat(rank % 2)},
                                {"PMI_FD", absl::StrCat(pmi.fd(rank))}});
    ASSERT_TRUE(place.ok()) << place.status();
    ASSERT_EQ(place->pmi_fd, pmi.fd(rank));
    places[rank] = *place;
  }
  std::vector<absl::Status> asked(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back(
        [&, rank] { asked[rank] = AskLauncher(&places[rank], 30); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(asked[rank].ok()) << asked[rank];
    const RankInfo& info = places[rank].info;
    EXPECT_EQ(info.nodes, 3);
    EXPECT_EQ(info.node_rank, rank / 2);
    EXPECT_EQ(info.run_key, "mpich-kvs_1_0_vm");
    EXPECT_EQ(info.token.size(), 32u);
    EXPECT_EQ(info.token, places[0].info.token);
  }
  EXPECT_EQ(PlaceText(places[3].info), "MPICH: node 1 of 3, rank 3 of 5");
}

TEST(AskLauncher, NobodyAnswers) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  auto place = PlaceIn(With(Mpich(), {{"PMI_FD", absl::StrCat(ends[0])}}));
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(ErrorOf(AskLauncher(&*place, /*seconds=*/0)),
              AllOf(HasSubstr("PMI_FD"), HasSubstr("doesn't answer")));
  close(ends[1]);
  EXPECT_THAT(ErrorOf(AskLauncher(&*place, /*seconds=*/10)),
              HasSubstr("PMI_FD"));
  close(ends[0]);
}

}  // namespace
}  // namespace capstan
