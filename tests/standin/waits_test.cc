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
constexpr char kQuickRun[] = "run_distributed.pbtxt";

std::vector<std::string> Args(int gpus, const std::string& strategy,
                              const std::string& config, int steps,
                              const std::vector<std::string>& more) {
  const std::string ranks = std::to_string(gpus);
  std::vector<std::string> fields = Small(config);
  fields.insert(fields.end(),
                {"train.eval_every=0", "train.eval_batches=1",
                 "train.sample_prompts=", "launch.processes=" + ranks,
                 "strategy=capstan." + strategy, "schedule.warmup_steps=1",
                 "batch.micro_batch_size=1", "batch.global_batch_size=" + ranks,
                 "train.max_steps=" + std::to_string(steps)});
  fields.insert(fields.end(), more.begin(), more.end());
  std::vector<std::string> args = {"--config=" + Runfile("configs/" + config)};
  for (const std::string& field : fields) {
    args.insert(args.end(), {"--set", field});
  }
  return args;
}

// A line of the report of one of `steps` steps, from the third on: the first
// two allocate and choose.
void ExpectNoWait(const nlohmann::json& line, int mallocs, int steps) {
  // Evaluation and saving, after the last one, wait under its number.
  if (line.contains("wait") && line["step"] < steps) ADD_FAILURE() << line;
  if (!line.contains("works")) return;
  EXPECT_EQ(line["waits"], 0) << line;
  EXPECT_LE(line["mallocs"], mallocs) << line;
}

// No loop of queries leaves the device with less than half a step to do.
// Returns how many there were.
int ExpectWorkBehindPolls(const std::vector<nlohmann::json>& report,
                          int of_steps) {
  int64_t works = 0;
  for (const nlohmann::json& line : report) {
    if (line.contains("works")) works = line["works"];
  }
  int polls = 0;
  for (const nlohmann::json& line : report) {
    if (!line.contains("poll") || line["step"] < 2 ||
        line["step"] >= of_steps) {
      continue;
    }
    ++polls;
    EXPECT_GT(line["behind"], works / 2) << line;
  }
  return polls;
}

// Returns the run's folder.
std::string ExpectNoWaitsOn(int gpus, const std::string& strategy,
                            const std::string& config,
                            const std::vector<std::string>& more,
                            int mallocs = 0, int of_steps = kSteps) {
  SCOPED_TRACE(config + " on " + std::to_string(gpus));
  // A host that a busy machine has stopped isn't idle.
  const StandinRun run =
      RunOn(gpus, Args(gpus, strategy, config, of_steps, more), "idle_ms=100");
  EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
  int steps = 0;
  for (const nlohmann::json& line : run.report) {
    if (!line.contains("step") || line["step"] < 3) continue;
    ExpectNoWait(line, mallocs, of_steps);
    if (line.contains("works")) ++steps;
  }
  EXPECT_EQ(steps, (of_steps - 2) * gpus) << "the reports lack steps";
  const int polls = ExpectWorkBehindPolls(run.report, of_steps);
  // On several devices another rank may be behind, so that none is needed.
  EXPECT_GE(polls, gpus == 1 ? 1 : 0) << "the sums aren't polled for";
  EXPECT_TRUE(run.findings.empty()) << run.findings[0];
  return run.folder;
}

void ExpectNoWaits(const std::string& config,
                   const std::vector<std::string>& more = {}, int mallocs = 0) {
  ExpectNoWaitsOn(1, "single", config, more, mallocs);
  ExpectNoWaitsOn(2, "ddp", config, more, mallocs);
  ExpectNoWaitsOn(4, "fsdp", config, more, mallocs);
}

TEST(StandinWaitsTest, CausalLm) { ExpectNoWaits(kQuickRun); }
TEST(StandinWaitsTest, Accumulation) {
  ExpectNoWaitsOn(2, "zero2", kQuickRun, {"batch.global_batch_size=4"});
}
// Its next loss scale depends on this step's gradients.
TEST(StandinWaitsTest, LossScaling) {
  ExpectNoWaitsOn(2, "ddp", kQuickRun,
                  {"precision=capstan.fp16", "precision.initial_scale=1024"});
}
TEST(StandinWaitsTest, Fp8) {
  for (const char* scaling : {"TENSOR", "ROW"}) {
    ExpectNoWaitsOn(1, "single", kQuickRun,
                    {"precision=capstan.fp8", "precision.log_underflow=true",
                     std::string("precision.scaling=") + scaling});
  }
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
  ExpectNoWaits("ad_darkroom_quickstart.pbtxt", FewHistories());
}

// Their copies run beside the next step, whose update waits for them on the
// device; each mirror is whole a few steps later.
TEST(StandinWaitsTest, MirroredSteps) {
  const std::vector<std::string> mirrored = {"launch.max_restarts=1",
                                             "train.mirror_every=1"};
  for (const char* strategy : {"ddp", "fsdp"}) {
    const std::string folder = ExpectNoWaitsOn(2, strategy, kQuickRun, mirrored,
                                               /*mallocs=*/0, /*of_steps=*/30);
    EXPECT_GE(ReadJson(folder + "/summary.json")["mirrored_steps"], 3);
  }
}

// Only the step that saves waits, to look for NaN in the weights; their copies
// are waited for by the thread that writes them.
TEST(StandinWaitsTest, SavesInTheBackground) {
  constexpr int kSaved = 4, kAll = 8;
  const StandinRun run =
      RunOn(2, Args(2, "fsdp", kQuickRun, kAll,
                    {"train.save_every=" + std::to_string(kSaved)}));
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  int saving = 0, writing = 0;
  for (const nlohmann::json& line : run.report) {
    if (!line.contains("wait")) continue;
    const int step = line["step"];
    if (step < 3 || step == kAll) continue;  // it evaluates and saves, too
    if (line["thread"] == "save-write") {
      ++writing;
    } else {
      ++saving;
      EXPECT_EQ(step, kSaved) << line;
    }
  }
  EXPECT_GT(saving, 0);
  EXPECT_GT(writing, 0);
  EXPECT_TRUE(run.findings.empty()) << run.findings[0];
}

// An optimizer on the host must see gradients and their scale: the host waits
// for the gradients' copies, for those of the parameters that it overwrites,
// and for the scale, and not once for each of the model's units. The copy of
// the scale is told of as two waits.
TEST(StandinWaitsTest, OffloadedShards) {
  const StandinRun run = RunOn(
      2, Args(2, "fsdp", kQuickRun, kSteps, {"strategy.cpu_offload=true"}));
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

std::vector<std::string> OfExperts(const std::vector<std::string>& more = {}) {
  std::vector<std::string> fields = {
      "model=capstan.decoder",
      "model.config=" + Runfile("tests/golden/testdata/qwen3_moe/config.json")};
  fields.insert(fields.end(), more.begin(), more.end());
  return fields;
}

// Their products are grouped on the device.
TEST(StandinWaitsTest, MixtureOfExperts) {
  ExpectNoWaits(kQuickRun, OfExperts({"precision=capstan.bf16"}));
}

// The frozen matrices are unpacked on the device.
TEST(StandinWaitsTest, AdaptersOfAQuantisedBase) {
  ExpectNoWaits(kQuickRun,
                {"model=capstan.decoder",
                 "model.pretrained=" + Runfile("tests/golden/testdata/llama"),
                 "adapter.lora.target_modules=[\"all-linear\"]",
                 "adapter.lora.quantize=NF4"});
}

// Where products aren't grouped the host issues the experts', so that it must
// know how many rows each has: once a layer and micro-step, and the device
// sorts the rows meanwhile.
void ExpectAWaitALayer(const std::string& gpu,
                       const std::vector<std::string>& more) {
  SCOPED_TRACE(gpu);
  constexpr int kLayers = 4, kMicroSteps = 2;
  std::vector<std::string> fields =
      OfExperts({"batch.global_batch_size=" + std::to_string(kMicroSteps)});
  fields.insert(fields.end(), more.begin(), more.end());
  const StandinRun run =
      RunOn(1, Args(1, "single", kQuickRun, kSteps, fields), "gpu=" + gpu);
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

TEST(StandinWaitsTest, ExpertsOneByOne) { ExpectAWaitALayer("h100", {}); }

TEST(StandinWaitsTest, AdaptersOfExperts) {
  const std::vector<std::string> lora = {
      "adapter.lora.target_modules=[\"all-linear\"]", "precision=capstan.bf16"};
  ExpectNoWaits(kQuickRun, OfExperts(lora));
  ExpectAWaitALayer("a100", lora);
}

}  // namespace
}  // namespace capstan
