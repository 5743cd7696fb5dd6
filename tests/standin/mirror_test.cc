// SPDX-License-Identifier: Apache-2.0
//
// A GPU's mirror is copied beside the next steps: a rank that dies meanwhile
// costs a few steps, and no bit.
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "tests/standin/standin_run.h"
#include "tests/testing/told_end.h"

namespace capstan {
namespace {

// It has more if it is beyond that when it is told its end.
constexpr int kSteps = 50, kKilledAfter = 12;
constexpr char kRestarted[] = "restarted from step ";

void ExpectNothingLost(const std::string& strategy, const std::string& order) {
  SCOPED_TRACE(strategy + " " + order);
  const std::vector<std::string> args =
      ShortRun(2, {"strategy=capstan." + strategy, "train.log_every=1",
                   "batch.micro_batch_size=1", "batch.global_batch_size=2",
                   "schedule.total_steps=" + std::to_string(kSteps),
                   "launch.max_restarts=2", "train.mirror_every=2"});
  const std::string folder = NewTestFolder("killed") + "/out";
  std::vector<std::string> all = {Runfile("trainer/trainer")};
  all.insert(all.end(), args.begin(), args.end());
  all.insert(all.end(),
             {"--set", "output_dir=" + folder, "--set",
              "train.max_steps=1000000", "--set", "train.control=true"});
  TrainerOptions options;
  options.timeout = 200;
  options.binary = Runfile("testing/standin/run.sh");
  options.environment["CAPSTAN_STANDIN"] = "gpus=2,order=" + order;
  TrainerProcess process(all, options);
  ASSERT_TRUE(process.WaitUntil([&] {
    return CountLines(folder + "/metrics.jsonl") >= kKilledAfter;
  })) << process.Err();
  const std::vector<pid_t> ranks = process.Children();
  ASSERT_EQ(ranks.size(), 2u);
  kill(ranks[1], SIGKILL);
  const int64_t end = EndAfter(kSteps, folder, &process);
  const TrainerResult result = process.Wait();
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const size_t at = result.out.find(kRestarted);
  ASSERT_NE(at, std::string::npos) << result.out << result.err;
  // Not from the beginning: the last but one may still have been under way.
  const int from = std::stoi(result.out.substr(at + sizeof(kRestarted) - 1));
  EXPECT_GE(from, 1);
  std::vector<std::string> whole = args;
  whole.insert(whole.end(),
               {"--set", "train.max_steps=" + std::to_string(end)});
  const StandinRun straight = RunOn(2, whole, "order=" + order);
  ASSERT_EQ(straight.result.exit_code, 0) << straight.result.err;
  const Metrics killed = ReadMetrics(folder);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"}) {
    EXPECT_EQ(killed.Values(key), straight.metrics.Values(key)) << key;
  }
}

TEST(StandinMirrorTest, Ddp) { ExpectNothingLost("ddp", "late"); }
TEST(StandinMirrorTest, Fsdp) { ExpectNothingLost("fsdp", "random:3"); }

}  // namespace
}  // namespace capstan
