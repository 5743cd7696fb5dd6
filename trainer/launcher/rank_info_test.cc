// SPDX-License-Identifier: Apache-2.0
#include "trainer/launcher/rank_info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <string>

namespace capstan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Environment = std::map<std::string, std::string>;

absl::StatusOr<absl::optional<RankInfo>> From(const Environment& environment) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "OMP_NUM_THREADS", "SLURM_NTASKS", "SLURM_PROCID",
        "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK"}) {
    unsetenv(name);
  }
  for (const auto& variable : environment) {
    setenv(variable.first.c_str(), variable.second.c_str(), 1);
  }
  return RankFromEnvironment();
}

std::string ErrorFrom(const Environment& environment) {
  return std::string(From(environment).status().message());
}

TEST(RankFromEnvironment, NothingSet) {
  const auto info = From({});
  ASSERT_TRUE(info.ok());
  EXPECT_FALSE(info->has_value());
  // A cluster may set these for everyone.
  EXPECT_FALSE(From({{"MASTER_ADDR", "node0"}})->has_value());
}

TEST(RankFromEnvironment, AsTorchrunSetsIt) {
  const auto info = From({{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29500"},
                          {"OMP_NUM_THREADS", "3"}});
  ASSERT_TRUE(info.ok()) << info.status();
  ASSERT_TRUE(info->has_value());
  EXPECT_EQ((*info)->rank, 5);
  EXPECT_EQ((*info)->world_size, 8);
  EXPECT_EQ((*info)->local_rank, 1);
  EXPECT_EQ((*info)->local_world_size, 4);
  EXPECT_EQ((*info)->master_addr, "node0");
  EXPECT_EQ((*info)->master_port, 29500);
  EXPECT_EQ((*info)->listen_fd, -1);
  EXPECT_EQ((*info)->threads, 3);
}

TEST(RankFromEnvironment, OneMachineNeedsNoLocalPlace) {
  const auto info = From({{"RANK", "1"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", "29500"}});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ((*info)->local_rank, 1);
  EXPECT_EQ((*info)->local_world_size, 2);
  EXPECT_GE((*info)->threads, 1);
}

TEST(RankFromEnvironment, OneRankNeedsNoMaster) {
  const auto info = From({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ((*info)->world_size, 1);
}

TEST(RankFromEnvironment, TasksOfOtherLaunchersAreRefused) {
  EXPECT_THAT(ErrorFrom({{"SLURM_PROCID", "1"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "4"}}),
              AllOf(HasSubstr("SLURM_STEP_NUM_TASKS is 4"),
                    HasSubstr("srun has started 4"),
                    HasSubstr("srun --ntasks=1"), HasSubstr("torchrun")));
  EXPECT_THAT(
      ErrorFrom({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "0"}}),
      AllOf(HasSubstr("OMPI_COMM_WORLD_SIZE is 2"), HasSubstr("mpirun")));
  EXPECT_THAT(ErrorFrom({{"PMI_SIZE", "8"}, {"PMI_RANK", "7"}}),
              AllOf(HasSubstr("PMI_SIZE is 8"), HasSubstr("mpirun")));
}

TEST(RankFromEnvironment, OneTaskOfAnotherLauncherIsFine) {
  for (const Environment& environment :
       {// A batch script of four tasks that calls no srun.
        Environment{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
        // `srun --ntasks=1` in it.
        Environment{{"SLURM_PROCID", "0"},
                    {"SLURM_NTASKS", "1"},
                    {"SLURM_STEP_ID", "0"},
                    {"SLURM_STEP_NUM_TASKS", "1"}},
        Environment{{"OMPI_COMM_WORLD_SIZE", "1"}},
        Environment{{"PMI_SIZE", "1"}}}) {
    const auto info = From(environment);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_FALSE(info->has_value());
  }
  // A wrapper that sets RANK and WORLD_SIZE.
  const auto info = From({{"RANK", "1"},
                          {"WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "n0"},
                          {"MASTER_PORT", "29500"},
                          {"SLURM_STEP_NUM_TASKS", "4"}});
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ((*info)->rank, 1);
}

TEST(RankFromEnvironment, NamesWhatIsWrong) {
  Environment good = {{"RANK", "1"},
                      {"WORLD_SIZE", "4"},
                      {"LOCAL_RANK", "1"},
                      {"LOCAL_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "127.0.0.1"},
                      {"MASTER_PORT", "29500"}};
  ASSERT_TRUE(From(good).ok());
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
       }) {
    Environment bad = good;
    if (*c.value == '\0') {
      bad.erase(c.name);
    } else {
      bad[c.name] = c.value;
    }
    EXPECT_THAT(ErrorFrom(bad), HasSubstr(c.error)) << c.name;
  }
}

}  // namespace
}  // namespace capstan
