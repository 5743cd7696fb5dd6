// SPDX-License-Identifier: Apache-2.0
//
// In a steady step no call of the host waits for the device. The sums of the
// step before, which the host acts on a step later, are polled for
// (DeferredSums::Read): by then the device has this step's works.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

void ExpectNoWaits(const std::string& config,
                   const std::vector<std::string>& more = {}) {
  SCOPED_TRACE(config);
  std::vector<std::string> args = {"--config=" + Runfile("configs/" + config)};
  std::vector<std::string> fields = {
      "train.max_steps=4",      "train.eval_every=0", "train.eval_batches=1",
      "train.sample_prompts=",  "launch.processes=1", "strategy=capstan.single",
      "schedule.warmup_steps=1"};
  fields.insert(fields.end(), more.begin(), more.end());
  for (const std::string& field : fields) {
    args.insert(args.end(), {"--set", field});
  }
  const StandinRun run = RunOn(1, args);
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  int steps = 0;
  for (const nlohmann::json& line : run.report) {
    // The first two allocate and choose.
    if (!line.contains("step") || line["step"] < 3) continue;
    // Evaluation and saving, after the last one, wait under its number.
    if (line.contains("wait") && line["step"] == 3) ADD_FAILURE() << line;
    if (!line.contains("works")) continue;
    ++steps;
    EXPECT_EQ(line["waits"], 0) << line;
    EXPECT_EQ(line["mallocs"], 0) << line;
  }
  EXPECT_EQ(steps, 2) << "the report lacks steps 3 and 4";
  EXPECT_TRUE(run.findings.empty()) << run.findings[0];
}

TEST(StandinWaitsTest, CausalLm) { ExpectNoWaits("run_distributed.pbtxt"); }
TEST(StandinWaitsTest, Sft) { ExpectNoWaits("sft_quickstart.pbtxt"); }
TEST(StandinWaitsTest, MaskedDiffusion) {
  ExpectNoWaits("llada_quickstart.pbtxt",
                {"batch.micro_batch_size=1", "batch.global_batch_size=1"});
}
TEST(StandinWaitsTest, AlgorithmDistillation) {
  ExpectNoWaits(
      "ad_darkroom_quickstart.pbtxt",
      {"collect.streams=5", "collect.steps=1000", "train_data.steps=200",
       "train_data.path=" + ::testing::TempDir() + "/histories.hdf5",
       "batch.micro_batch_size=2", "objective.evaluation.final_episodes=1",
       "objective.evaluation.episodes=1", "objective.evaluation.streams=1"});
}

}  // namespace
}  // namespace capstan
