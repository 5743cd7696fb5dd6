// SPDX-License-Identifier: Apache-2.0
//
// In a steady step no call of the host waits for the device, for each objective
// on one device and on several. The sums of the step before, which the host
// acts on a step later, are polled for (DeferredSums::Read): by then the device
// has most of this step's works to go on with.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

constexpr int kSteps = 4;

std::vector<std::string> FieldsFor(int gpus, const std::string& strategy,
                                   const std::vector<std::string>& more) {
  const std::string ranks = std::to_string(gpus);
  std::vector<std::string> fields = {
      "train.max_steps=" + std::to_string(kSteps),
      "train.eval_every=0",
      "train.eval_batches=1",
      "train.sample_prompts=",
      "launch.processes=" + ranks,
      "strategy=capstan." + strategy,
      "schedule.warmup_steps=1",
      "batch.micro_batch_size=1",
      "batch.global_batch_size=" + ranks};
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

// A line of a step's report from its third step on: the first two allocate and
// choose.
void ExpectNoWait(const nlohmann::json& line, int mallocs) {
  // Evaluation and saving, after the last one, wait under its number.
  if (line.contains("wait") && line["step"] < kSteps) ADD_FAILURE() << line;
  if (!line.contains("works")) return;
  EXPECT_EQ(line["waits"], 0) << line;
  EXPECT_LE(line["mallocs"], mallocs) << line;
}

// No loop of queries leaves the device with less than half a step to do.
// Returns how many there were.
int ExpectWorkBehindPolls(const std::vector<nlohmann::json>& report) {
  int64_t works = 0;
  for (const nlohmann::json& line : report) {
    if (line.contains("works")) works = line["works"];
  }
  int polls = 0;
  for (const nlohmann::json& line : report) {
    if (!line.contains("poll") || line["step"] < 2 || line["step"] >= kSteps) {
      continue;
    }
    ++polls;
    EXPECT_GT(line["behind"], works / 2) << line;
  }
  return polls;
}

void ExpectNoWaitsOn(int gpus, const std::string& strategy,
                     const std::string& config,
                     const std::vector<std::string>& more, int mallocs = 0) {
  SCOPED_TRACE(config + " on " + std::to_string(gpus));
  std::vector<std::string> args = {"--config=" + Runfile("configs/" + config)};
  for (const std::string& field : FieldsFor(gpus, strategy, more)) {
    args.insert(args.end(), {"--set", field});
  }
  const StandinRun run = RunOn(gpus, args);
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  int steps = 0;
  for (const nlohmann::json& line : run.report) {
    if (!line.contains("step") || line["step"] < 3) continue;
    ExpectNoWait(line, mallocs);
    if (line.contains("works")) ++steps;
  }
  EXPECT_EQ(steps, 2 * gpus) << "the reports lack steps 3 and 4";
  const int polls = ExpectWorkBehindPolls(run.report);
  // On several devices another rank may be behind, so that none is needed.
  EXPECT_GE(polls, gpus == 1 ? 1 : 0) << "the sums aren't polled for";
  EXPECT_TRUE(run.findings.empty()) << run.findings[0];
}

void ExpectNoWaits(const std::string& config,
                   const std::vector<std::string>& more = {}, int mallocs = 0) {
  ExpectNoWaitsOn(1, "single", config, more, mallocs);
  ExpectNoWaitsOn(2, "ddp", config, more, mallocs);
  ExpectNoWaitsOn(4, "fsdp", config, more, mallocs);
}

TEST(StandinWaitsTest, CausalLm) { ExpectNoWaits("run_distributed.pbtxt"); }
TEST(StandinWaitsTest, Accumulation) {
  ExpectNoWaitsOn(2, "zero2", "run_distributed.pbtxt",
                  {"batch.global_batch_size=4"});
}
// Its next loss scale depends on this step's gradients.
TEST(StandinWaitsTest, LossScaling) {
  ExpectNoWaitsOn(2, "ddp", "run_distributed.pbtxt",
                  {"precision=capstan.fp16", "precision.initial_scale=1024"});
}
// A head of more rows with targets than any before may ask for memory.
TEST(StandinWaitsTest, Sft) {
  ExpectNoWaits("sft_quickstart.pbtxt", {}, /*mallocs=*/1);
}
TEST(StandinWaitsTest, MaskedDiffusion) {
  ExpectNoWaits("llada_quickstart.pbtxt");
}
TEST(StandinWaitsTest, Preferences) { ExpectNoWaits("dpo_quickstart.pbtxt"); }
// Its totals over the ranks are known before a step's first loss.
TEST(StandinWaitsTest, AlgorithmDistillation) {
  ExpectNoWaits(
      "ad_darkroom_quickstart.pbtxt",
      {"collect.streams=5", "collect.steps=1000", "train_data.steps=200",
       "train_data.path=" + ::testing::TempDir() + "/histories.hdf5",
       "batch.micro_batch_size=2", "batch.global_batch_size=8",
       "objective.evaluation.final_episodes=1",
       "objective.evaluation.episodes=1", "objective.evaluation.streams=1"});
}

// An optimizer on the host must see gradients and their scale: the host waits
// for the gradients' copies, for those of the parameters that it overwrites,
// and for the scale, and not once for each of the model's units. The copy of
// the scale is told of as two waits.
TEST(StandinWaitsTest, OffloadedShards) {
  std::vector<std::string> args = {"--config=" +
                                   Runfile("configs/run_distributed.pbtxt")};
  for (const std::string& field :
       FieldsFor(2, "fsdp", {"strategy.cpu_offload=true"})) {
    args.insert(args.end(), {"--set", field});
  }
  const StandinRun run = RunOn(2, args);
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  int steps = 0;
  for (const nlohmann::json& line : run.report) {
    if (!line.contains("works") || line["step"] < 3) continue;
    ++steps;
    EXPECT_LE(line["waits"], 4) << line;
  }
  EXPECT_EQ(steps, 4);
  EXPECT_TRUE(run.findings.empty()) << run.findings[0];
}

// The host issues the experts' products, so that it must know how many rows
// each has: once a layer and micro-step, and the device sorts the rows
// meanwhile.
TEST(StandinWaitsTest, MixtureOfExperts) {
  constexpr int kLayers = 4, kMicroSteps = 2;
  std::vector<std::string> args = {"--config=" +
                                   Runfile("configs/run_distributed.pbtxt")};
  for (const std::string& field : FieldsFor(
           1, "single",
           {"model=capstan.decoder", "batch.global_batch_size=2",
            "model.config=" +
                Runfile("tests/golden/testdata/qwen3_moe/config.json")})) {
    args.insert(args.end(), {"--set", field});
  }
  const StandinRun run = RunOn(1, args);
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  int waits = 0;
  for (const nlohmann::json& line : run.report) {
    if (!line.contains("wait") || line["step"] != kSteps - 1) continue;
    ++waits;
    EXPECT_EQ(line["wait"], "event_synchronize") << line;
    EXPECT_GE(line.value("behind", 0), 5) << line;
  }
  EXPECT_EQ(waits, kLayers * kMicroSteps);
  EXPECT_TRUE(run.findings.empty()) << run.findings[0];
}

}  // namespace
}  // namespace capstan
