// SPDX-License-Identifier: Apache-2.0
//
// Ranks that don't come to a collective on their GPUs, of which the host sees
// nothing but what the device has begun and ended; and ranks of several hosts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <utility>
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
      {"train.hang_floor_seconds=10", "train.hang_ceiling_seconds=10"});
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
  std::vector<std::string> args = InBuckets({"launch.nccl.timeout_seconds=10"});
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

// Appends `text` to what NCCL has written in memory in a rank's process; false:
// it hasn't begun to.
bool WriteAsNccl(pid_t rank, const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code gone;
  const std::string folder = absl::StrCat("/proc/", rank, "/fd");
  for (const auto& file : fs::directory_iterator(folder, gone)) {
    const std::string target = fs::read_symlink(file.path(), gone).string();
    if (!absl::StartsWith(target, "/memfd:nccl-log")) continue;
    if (!absl::StrContains(ReadText(file.path()), "Using network")) {
      return false;
    }
    std::ofstream(file.path(), std::ios::app) << text;
    return true;
  }
  return false;
}

// Two hosts of two GPUs each.
class StandinHostsTest : public ::testing::Test {
 protected:
  struct Settings {
    std::string standin;
    std::vector<std::string> fields;
    std::map<std::string, std::string> environment;
  };

  // A host of a run, with its number.
  TrainerProcess Start(int host, const std::string& meet,
                       const Settings& settings) const {
    std::vector<std::string> fields = {"strategy=capstan.fsdp",
                                       "output_dir=" + out_};
    fields.insert(fields.end(), settings.fields.begin(), settings.fields.end());
    std::vector<std::string> words = ShortRun(2, fields);
    words.insert(words.begin(), Runfile("trainer/trainer"));
    words.insert(words.end(), {"--nodes=2", "--rendezvous=" + meet,
                               absl::StrCat("--node_rank=", host)});
    TrainerOptions options;
    options.timeout = 200;
    options.binary = Runfile("testing/standin/run.sh");
    options.environment = settings.environment;
    options.environment["CAPSTAN_HOST_ID"] = absl::StrCat("host ", host);
    options.environment["CAPSTAN_STANDIN"] = "gpus=2" + settings.standin;
    return TrainerProcess(words, options);
  }

  // What the first says.
  std::string Run(const Settings& settings) {
    // Another process may take the port first.
    constexpr int kTries = 3;
    for (int tries = 1;; ++tries) {
      out_ = NewTestFolder("hosts") + "/out";
      const std::string meet = absl::StrCat("127.0.0.1:", FreePort());
      TrainerProcess second = Start(1, meet, settings);
      const TrainerResult first = Start(0, meet, settings).Wait();
      const bool taken = first.exit_code != 0 &&
                         absl::StrContains(first.err, "Address already in use");
      if (taken && tries < kTries) continue;
      EXPECT_EQ(first.exit_code, 0) << first.err;
      // The destructor ends the other where the first couldn't begin.
      if (first.exit_code == 0) {
        EXPECT_EQ(second.Wait().exit_code, 0);
      }
      return first.out;
    }
  }

  // Run's output, and the variables that a program gets which a rank starts.
  std::pair<std::string, std::string> RunAndEnvironment(Settings settings) {
    const std::string bin = NewTestFolder("bin");
    WriteText(bin + "/hf",
              absl::StrCat("#!/bin/sh\nenv > ", bin, "/environment\n"));
    chmod((bin + "/hf").c_str(), 0755);
    settings.environment["PATH"] = bin + ":/usr/bin:/bin";
    settings.fields.push_back("hub_upload.repo=me/model");
    const std::string out = Run(settings);
    return {out, ReadText(bin + "/environment")};
  }

  std::string out_;
};

TEST_F(StandinHostsTest, TheNetworkThatNcclTakesIsInTheBanner) {
  const std::string out = Run({",network=IB"});
  EXPECT_THAT(out, ContainsRegex("devices +4 x GPU: NVIDIA [^\n]*, NCCL "
                                 "2\\.28[.0-9]* over IB mlx5_0\n"));
  EXPECT_THAT(out, HasSubstr("strategy.shard_group_size=2"));
  EXPECT_THAT(ReadJson(out_ + "/summary.json")["devices"].get<std::string>(),
              HasSubstr(" over IB mlx5_0"));
}

// Whose variables nobody else sees.
TEST_F(StandinHostsTest, SocketsToo) {
  const auto [out, environment] = RunAndEnvironment({});
  EXPECT_THAT(out, HasSubstr(" over sockets eth0\n"));
  EXPECT_THAT(environment,
              AllOf(HasSubstr("PATH="), Not(HasSubstr("NCCL_DEBUG"))));
}

TEST_F(StandinHostsTest, TheUsersNcclDebugStays) {
  const auto [out, environment] =
      RunAndEnvironment({"", {}, {{"NCCL_DEBUG", "WARN"}}});
  EXPECT_THAT(out, HasSubstr(" (NCCL_DEBUG is set: see its log)\n"));
  EXPECT_THAT(environment, AllOf(HasSubstr("NCCL_DEBUG=WARN\n"),
                                 Not(HasSubstr("NCCL_DEBUG_"))));
}

// A collective that isn't done in time: the error says what NCCL had to say
// before.
TEST_F(StandinHostsTest, NcclsWarningsAreTold) {
  const Settings settings = {",fault=stall:8,fault_rank=1,hang=1000",
                             {"launch.nccl.timeout_seconds=10"},
                             {}};
  out_ = NewTestFolder("hosts") + "/out";
  const std::string meet = absl::StrCat("127.0.0.1:", FreePort());
  TrainerProcess second = Start(1, meet, settings);
  TrainerProcess first = Start(0, meet, settings);
  EXPECT_TRUE(first.WaitUntil([&] {
    const std::vector<pid_t> ranks = first.Children();
    return !ranks.empty() &&
           std::all_of(ranks.begin(), ranks.end(), [](pid_t rank) {
             return WriteAsNccl(rank,
                                "a:1:9 [0] NCCL WARN NET/IB : link is down\n");
           });
  }));
  const TrainerResult result = first.Wait();
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(
      result.err,
      ContainsRegex("rank [0-3] waited too long for another rank during "
                    "[^\n]*; NCCL has warned: NET/IB : link is down"));
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
