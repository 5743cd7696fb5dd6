// SPDX-License-Identifier: Apache-2.0
//
// Ranks that don't come to a collective on their GPUs, of which the host sees
// nothing but what the device has begun and ended; and ranks of several hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/free_port_for_test.h"
#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// In buckets of which some are under way when the next is issued.
std::vector<std::string> InBuckets(const std::vector<std::string>& more) {
  std::vector<std::string> fields = {
      "strategy=capstan.ddp", "strategy.bucket_cap_mib=0.05",
      "strategy.first_bucket_mib=0.05", "train.max_steps=20"};
  fields.insert(fields.end(), more.begin(), more.end());
  return ShortRun(2, fields);
}

// A limit that a step on a starved machine keeps.
std::vector<std::string> Watched() {
  return InBuckets(
      {"train.hang_floor_seconds=15", "train.hang_ceiling_seconds=15"});
}

// Rank 1's device stays in a collective, as with a link that is down: nobody is
// behind, but it is told where all are.
TEST(StandinHangsTest, ACollectiveThatStalls) {
  const StandinRun run =
      RunOn(2, Watched(), "fault=stall:8,fault_rank=1,hang=1000");
  EXPECT_EQ(run.result.exit_code, 75) << run.result.err;
  EXPECT_THAT(
      run.result.err,
      ContainsRegex("no rank is behind the others; ranks 0, 1 wait in "
                    "all-reduce [0-9]+ of bucket [0-9]+ \\([0-9.]+ [KM]iB, "
                    "process group 1\\)"));
}

// Rank 1's host leaves one out, so that all later ones meet another.
TEST(StandinHangsTest, AHostThatSkipsACollective) {
  const StandinRun run =
      RunOn(2, Watched(), "fault=skip:8,fault_rank=1,hang=1000");
  EXPECT_EQ(run.result.exit_code, 75) << run.result.err;
  EXPECT_THAT(
      run.result.err,
      AllOf(ContainsRegex("the ranks' collectives differ: rank 0 waits in "
                          "all-reduce [0-9]+ of bucket [0-9]+"),
            ContainsRegex("rank 1 waits in all-reduce [0-9]+ of bucket")));
}

// The limit ends the collective on the device, and the rank by an error that
// names it.
TEST(StandinHangsTest, NcclsLimitNamesTheCollective) {
  std::vector<std::string> args = InBuckets({"launch.nccl.timeout_seconds=15"});
  const StandinRun run = RunOn(2, args, "fault=stall:8,fault_rank=1,hang=1000");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  EXPECT_THAT(
      run.result.err,
      ContainsRegex("rank [01] waited too long for another rank during "
                    "all-reduce [0-9]+ of bucket [0-9]+ \\([0-9.]+ [KM]iB\\): "
                    "NCCL communicator was aborted"));
}

// What NCCL says of an error of its own is told.
TEST(StandinHangsTest, AnErrorOfNcclNamesTheCollective) {
  const StandinRun run =
      RunOn(2, InBuckets({}), "fault=collective:8,fault_rank=1");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  EXPECT_THAT(
      run.result.err,
      ContainsRegex("rank [01] lost the connection to another rank during "
                    "all-reduce [0-9]+ of bucket [0-9]+ [^\n]*NCCL"));
}

// Two hosts of two GPUs each.
class StandinHostsTest : public ::testing::Test {
 protected:
  // What the first says.
  std::string Run(const std::string& settings) {
    // Another process may take the port first.
    constexpr int kTries = 3;
    for (int tries = 1;; ++tries) {
      const TrainerResult first = Try(settings);
      const bool taken = first.exit_code != 0 &&
                         absl::StrContains(first.err, "Address already in use");
      if (taken && tries < kTries) continue;
      EXPECT_EQ(first.exit_code, 0) << first.err;
      return first.out;
    }
  }

  TrainerResult Try(const std::string& settings) {
    const std::string meet =
        absl::StrCat("--rendezvous=127.0.0.1:", FreePort());
    out_ = NewTestFolder("hosts") + "/out";
    const auto words = [&](int host) {
      std::vector<std::string> words =
          ShortRun(2, {"strategy=capstan.fsdp", "output_dir=" + out_});
      words.insert(words.begin(), Runfile("trainer/trainer"));
      words.insert(words.end(),
                   {"--nodes=2", meet, absl::StrCat("--node_rank=", host)});
      return words;
    };
    const auto options = [&](const char* host) {
      TrainerOptions options;
      options.timeout = 200;
      options.binary = Runfile("testing/standin/run.sh");
      options.environment["CAPSTAN_HOST_ID"] = host;
      options.environment["CAPSTAN_STANDIN"] = "gpus=2" + settings;
      return options;
    };
    TrainerProcess second(words(1), options("second"));
    TrainerResult first = RunTrainer(words(0), options("first"));
    // The destructor ends the other where the first couldn't begin.
    if (first.exit_code == 0) {
      EXPECT_EQ(second.Wait().exit_code, 0);
    }
    return first;
  }

  std::string out_;
};

TEST_F(StandinHostsTest, TheNetworkThatNcclTakesIsInTheBanner) {
  const std::string out = Run(",network=IB");
  EXPECT_THAT(out, ContainsRegex("devices +4 x GPU: NVIDIA [^\n]*, NCCL "
                                 "2\\.28[.0-9]* over IB mlx5_0\n"));
  EXPECT_THAT(out, HasSubstr("strategy.shard_group_size=2"));
  EXPECT_THAT(ReadJson(out_ + "/summary.json")["devices"].get<std::string>(),
              HasSubstr(" over IB mlx5_0"));
}

TEST_F(StandinHostsTest, SocketsToo) {
  EXPECT_THAT(Run(""), HasSubstr(" over sockets eth0\n"));
}

TEST(StandinHostTest, OneHasNoNetwork) {
  const StandinRun run = RunOn(2, ShortRun(2, {"strategy=capstan.fsdp"}));
  EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
  EXPECT_THAT(run.result.out,
              AllOf(HasSubstr(", NCCL 2.28"), Not(HasSubstr(" over ")),
                    Not(HasSubstr("shard_group_size"))));
}

}  // namespace
}  // namespace capstan
