// SPDX-License-Identifier: Apache-2.0
//
// The README's first command, cut short.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/run_folder.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

TEST(DefaultRunTest, ValidationLossFallsAllTheWayAndTextIsShown) {
  const std::string folder = NewTestFolder("run") + "/out";
  TrainerOptions options;
  options.timeout = 240;
  const TrainerResult result =
      RunTrainer({"--config=" + Runfile("configs/run_distributed.pbtxt"),
                  "--set", "output_dir=" + folder, "--set",
                  "train.max_steps=60", "--set", "train.eval_every=20", "--set",
                  "train.eval_batches=8", "--set", "schedule.warmup_steps=10"},
                 options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("before training"));
  EXPECT_THAT(result.out, HasSubstr("after training"));
  const Metrics metrics = ReadMetrics(folder);
  ASSERT_EQ(metrics.steps.size(), 60);
  ASSERT_EQ(metrics.evals.size(), 3);
  double before = 5.6;  // log 256 and a little
  for (const nlohmann::json& line : metrics.evals) {
    EXPECT_LT(line["eval_loss"], before);
    before = line["eval_loss"];
  }
  EXPECT_LT(before, 3.8);
}

// Whatever number of ranks AUTO comes to, the config is a valid one.
TEST(DefaultRunTest, FitsAnyNumberOfRanks) {
  for (const char* processes : {"1", "3", "8"}) {
    const TrainerResult result = RunTrainer(
        {"check", "--config=" + Runfile("configs/run_distributed.pbtxt"),
         "--set", std::string("launch.processes=") + processes});
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
}

}  // namespace
}  // namespace capstan
