// SPDX-License-Identifier: Apache-2.0
//
// In a steady step the host doesn't wait for the device, but for the sums of
// the step before, which it acts on a step later (DeferredSums): by then the
// device has this step's works, and is never idle for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

bool ForSumsOfStepBefore(const nlohmann::json& wait) {
  const auto& where = wait["where"];
  return std::any_of(where.begin(), where.end(), [](const nlohmann::json& f) {
    return f.get<std::string>().find("DeferredSums") != std::string::npos;
  });
}

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
  int steps = 0;  // of which the device knows
  for (const nlohmann::json& line : run.report) {
    if (line.contains("works") && line["step"] == 3) ++steps;
    // The first two allocate and choose; the last one ends the run.
    if (!line.contains("wait") || line["step"] != 3) continue;
    EXPECT_TRUE(ForSumsOfStepBefore(line)) << line;
  }
  EXPECT_EQ(steps, 1) << "the report has no step 3";
  EXPECT_TRUE(run.findings.empty()) << run.findings[0];
}

TEST(StandinWaitsTest, CausalLm) { ExpectNoWaits("run_distributed.pbtxt"); }
TEST(StandinWaitsTest, Sft) { ExpectNoWaits("sft_quickstart.pbtxt"); }
TEST(StandinWaitsTest, MaskedDiffusion) {
  ExpectNoWaits("llada_quickstart.pbtxt",
                {"batch.micro_batch_size=1", "batch.global_batch_size=1"});
}

}  // namespace
}  // namespace capstan
