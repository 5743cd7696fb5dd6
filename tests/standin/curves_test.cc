// SPDX-License-Identifier: Apache-2.0
//
// Losses and gradients on stand-in devices are the CPU's, under every strategy,
// and the devices find nothing wrong.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

void ExpectNear(const std::vector<double>& actual,
                const std::vector<double>& expected, double relative) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], relative * std::abs(expected[i]))
        << "step " << i + 1;
  }
}

// Runs on the CPU that several others are compared with.
const StandinRun& OnCpu(const std::vector<std::string>& args) {
  static auto* const runs = new std::map<std::vector<std::string>, StandinRun>;
  const auto found = runs->find(args);
  return found != runs->end()
             ? found->second
             : runs->emplace(args, RunOn(0, args)).first->second;
}

struct Bounds {
  double loss, grad_norm;
};

// Of the CPU's, relative. Sums have other orders: by 3e-8 and 1e-8 (float32)
// when this was written; bfloat16's roundings differ too, where the CPU fuses
// operators: 5e-5 and 1e-3.
constexpr Bounds kFloat32 = {1e-6, 1e-6}, kBFloat16 = {1e-4, 2e-3};

void ExpectCurveOfCpu(int gpus, const std::string& strategy,
                      const std::string& precision, const Bounds& bounds,
                      const std::vector<std::string>& more = {}) {
  SCOPED_TRACE(strategy + " on " + std::to_string(gpus) + " in " + precision);
  const std::string in = "precision=capstan." + precision;
  const auto fields = [&](const std::string& name) {
    std::vector<std::string> all = {"strategy=capstan." + name, in};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const StandinRun& cpu = OnCpu(ShortRun(1, fields("single")));
  ASSERT_EQ(cpu.result.exit_code, 0) << cpu.result.err;
  const StandinRun gpu = RunOn(gpus, ShortRun(gpus, fields(strategy)));
  ASSERT_EQ(gpu.result.exit_code, 0) << gpu.result.err;
  EXPECT_NE(gpu.result.out.find("GPU"), std::string::npos) << gpu.result.out;
  ASSERT_EQ(gpu.metrics.steps.size(), 2);
  ExpectNear(gpu.metrics.losses(), cpu.metrics.losses(), bounds.loss);
  ExpectNear(gpu.metrics.grad_norms(), cpu.metrics.grad_norms(),
             bounds.grad_norm);
  EXPECT_TRUE(gpu.findings.empty()) << gpu.findings[0];
}

TEST(StandinCurvesTest, Single) {
  ExpectCurveOfCpu(1, "single", "fp32", kFloat32);
}
TEST(StandinCurvesTest, SingleBFloat16) {
  ExpectCurveOfCpu(1, "single", "bf16", kBFloat16);
}
// Numbers next to where a cast rounds fall to either side, by up to 2^-3 of
// each, and the GPU's nodes round elsewhere than the CPU's.
TEST(StandinCurvesTest, Fp8) {
  constexpr Bounds kFp8 = {2e-3, 3e-2};
  ExpectCurveOfCpu(1, "single", "fp8", kFp8);
  ExpectCurveOfCpu(2, "fsdp", "fp8", kFp8, {"precision.scaling=ROW"});
  // Experts, too; a token whose choices are close may go to another one.
  ExpectCurveOfCpu(
      1, "single", "fp8", {2e-2, 2e-1},
      {"model=capstan.decoder", "model.config=" + SmallModel("qwen3_moe.json"),
       "precision.bf16_layers_at_start=0", "precision.bf16_layers_at_end=0"});
  // At the start, of an older GPU.
  const StandinRun old =
      RunOn(1, ShortRun(1, {"precision=capstan.fp8"}), "gpu=a100");
  EXPECT_NE(old.result.exit_code, 0);
  EXPECT_NE(old.result.err.find("compute capability 8.0"), std::string::npos)
      << old.result.err;
}
TEST(StandinCurvesTest, Ddp) { ExpectCurveOfCpu(2, "ddp", "fp32", kFloat32); }
TEST(StandinCurvesTest, Zero2) {
  ExpectCurveOfCpu(2, "zero2", "fp32", kFloat32);
}
TEST(StandinCurvesTest, FsdpBFloat16) {
  ExpectCurveOfCpu(2, "fsdp", "bf16", kBFloat16);
}
TEST(StandinCurvesTest, FsdpOnFour) {
  ExpectCurveOfCpu(4, "fsdp", "fp32", kFloat32);
}

// The third loss depends on the state that the first update wrote.
TEST(StandinCurvesTest, AdamWInFewerBits) {
  for (const char* state : {"BFLOAT16", "EIGHT_BIT"}) {
    SCOPED_TRACE(state);
    const std::vector<std::string> args =
        ShortRun(1, {"strategy=capstan.single", "train.max_steps=3",
                     std::string("optimizer.state=") + state});
    const StandinRun cpu = RunOn(0, args), gpu = RunOn(1, args);
    ASSERT_EQ(cpu.result.exit_code, 0) << cpu.result.err;
    ASSERT_EQ(gpu.result.exit_code, 0) << gpu.result.err;
    ASSERT_EQ(gpu.metrics.steps.size(), 3);
    ExpectNear(gpu.metrics.losses(), cpu.metrics.losses(), kFloat32.loss);
    EXPECT_TRUE(gpu.findings.empty()) << gpu.findings[0];
  }
}

TEST(StandinCurvesTest, Recomputed) {
  for (const char* what : {"EVERY_UNIT", "MLP"}) {
    const std::string field =
        std::string("train.activation_checkpointing=") + what;
    ExpectCurveOfCpu(1, "single", "fp32", kFloat32, {field});
    ExpectCurveOfCpu(2, "fsdp", "bf16", kBFloat16, {field});
  }
}

// The copies run beside the units; what they read and write is theirs in time.
TEST(StandinCurvesTest, OffloadedInputs) {
  const std::vector<std::string> fields = {
      "strategy=capstan.single", "train.activation_checkpointing=EVERY_UNIT"};
  std::vector<std::string> offloaded = fields;
  offloaded.push_back("train.offload.activations=true");
  for (const char* order : {"order=late", "order=random:1"}) {
    const StandinRun kept = RunOn(1, ShortRun(1, fields), order);
    const StandinRun run = RunOn(1, ShortRun(1, offloaded), order);
    ASSERT_EQ(kept.result.exit_code, 0) << kept.result.err;
    ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
    EXPECT_EQ(run.metrics.losses(), kept.metrics.losses());
    EXPECT_EQ(run.metrics.grad_norms(), kept.metrics.grad_norms());
    EXPECT_TRUE(run.findings.empty()) << run.findings[0];
  }
}

// LibTorch chooses cuDNN's attention on an H100. It is compared with the flash
// kernels, which an A100 has, before it is first used.
TEST(StandinCurvesTest, CudnnsAttentionThatCannotBeUsed) {
  const char kWarning[] = "cuDNN's attention isn't used";
  const std::vector<std::string> args =
      ShortRun(1, {"strategy=capstan.single", "precision=capstan.bf16"});
  const StandinRun flash = RunOn(1, args, "gpu=a100");
  const StandinRun sound = RunOn(1, args, "gpu=h100");
  ASSERT_EQ(flash.result.exit_code, 0) << flash.result.err;
  ASSERT_EQ(sound.result.exit_code, 0) << sound.result.err;
  EXPECT_EQ(sound.result.err.find(kWarning), std::string::npos)
      << sound.result.err;
  for (const auto& [fault, reason] :
       {std::make_pair("refuses", "it refuses: No valid execution plans"),
        std::make_pair("wrong", "its gradient to q differs from theirs")}) {
    SCOPED_TRACE(fault);
    const StandinRun run =
        RunOn(1, args, std::string("gpu=h100,cudnn=") + fault);
    ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
    const size_t said = run.result.err.find(kWarning);
    ASSERT_NE(said, std::string::npos) << run.result.err;
    EXPECT_NE(run.result.err.find(reason, said), std::string::npos)
        << run.result.err;
    EXPECT_EQ(run.result.err.find(kWarning, said + 1), std::string::npos)
        << "said twice: " << run.result.err;
    EXPECT_EQ(run.metrics.losses(), flash.metrics.losses());
    EXPECT_EQ(run.metrics.grad_norms(), flash.metrics.grad_norms());
    EXPECT_TRUE(run.findings.empty()) << run.findings[0];
  }
}

// Two steps of a config of the repository, on one device or on several that
// divide its rows.
void ExpectConfig(const std::string& config,
                  const std::vector<std::string>& more = {},
                  double bound = kFloat32.loss, int gpus = 1) {
  SCOPED_TRACE(config);
  std::vector<std::string> args = {"--config=" + Runfile("configs/" + config)};
  std::vector<std::string> fields = Small(config);
  fields.insert(
      fields.end(),
      {"train.max_steps=2", "train.sample_prompts=", "train.eval_every=0",
       "train.eval_batches=1", "train.log_every=1", "launch.processes=1",
       "schedule.warmup_steps=1", "strategy=capstan.single"});
  fields.insert(fields.end(), more.begin(), more.end());
  for (const std::string& field : fields) {
    args.insert(args.end(), {"--set", field});
  }
  const StandinRun& cpu = OnCpu(args);
  if (gpus > 1) {
    const std::string ranks = std::to_string(gpus);
    for (const std::string& field :
         {std::string("strategy=capstan.fsdp"), "launch.processes=" + ranks,
          "train.sequence_parallel=" + ranks}) {
      args.insert(args.end(), {"--set", field});
    }
  }
  const StandinRun gpu = RunOn(gpus, args);
  ASSERT_EQ(cpu.result.exit_code, 0) << cpu.result.err;
  ASSERT_EQ(gpu.result.exit_code, 0) << gpu.result.err;
  ExpectNear(gpu.metrics.losses(), cpu.metrics.losses(), bound);
  if (gpus > 1) {
    ExpectNear(gpu.metrics.grad_norms(), cpu.metrics.grad_norms(), 20 * bound);
  }
  EXPECT_TRUE(gpu.findings.empty()) << gpu.findings[0];
}

// Answers are sampled and rewarded, and the best ones learnt: GRPO's own loss
// is 0 at the start but for rounding.
void ExpectRewards(int gpus) {
  ExpectConfig("grpo_quickstart.pbtxt",
               {"train_data.tokenizer=" + Runfile("datasets/samples/tokenizer"),
                "train_data.chat_template=chatml",
                "model.pretrained=", "model.vocab_size=4096",
                "model.hidden_size=64", "model.intermediate_size=176",
                "model.num_hidden_layers=2", "model.num_attention_heads=4",
                "model.max_position_embeddings=64", "model.bos_token_id=1",
                "model.eos_token_id=2", "batch.micro_batch_size=16",
                "batch.global_batch_size=32", "objective.kind=REJECTION",
                "objective.reward=[{regex {pattern: \"[a-e]{2}\"}}]"},
               kFloat32.loss, gpus);
}

// In bfloat16 products are grouped on the device, in float32 they aren't.
void ExpectExperts(int gpus) {
  std::vector<std::string> fields = {
      "model=capstan.decoder",
      "model.config=" + Runfile("tests/golden/testdata/qwen3_moe/config.json"),
      "batch.micro_batch_size=1", "batch.global_batch_size=2"};
  ExpectConfig("run_distributed.pbtxt", fields, kFloat32.loss, gpus);
  fields.push_back("precision=capstan.bf16");
  ExpectConfig("run_distributed.pbtxt", fields, kBFloat16.loss, gpus);
}

TEST(StandinCurvesTest, DividedRows) {
  const std::vector<std::string> batch = {"batch.micro_batch_size=2",
                                          "batch.global_batch_size=4"};
  ExpectConfig("run_distributed.pbtxt", batch, kFloat32.loss, 2);
  // Four ranks don't divide the heads of keys; windows; packed rows.
  std::vector<std::string> gemma = batch;
  gemma.insert(gemma.end(), {"model=capstan.decoder",
                             "model.config=" + SmallModel("gemma3.json")});
  ExpectConfig("run_distributed.pbtxt", gemma, kFloat32.loss, 4);
  gemma.push_back("precision=capstan.bf16");
  ExpectConfig("run_distributed.pbtxt", gemma, kBFloat16.loss, 4);
  ExpectConfig("sft_quickstart.pbtxt", {}, kFloat32.loss, 4);
  ExpectConfig("sft_quickstart.pbtxt", {"precision=capstan.bf16"},
               kBFloat16.loss, 4);
  ExpectConfig("dpo_quickstart.pbtxt", {}, kFloat32.loss, 2);
  ExpectRewards(2);
  ExpectExperts(2);
}
// Its batches are pairs, whose counts stay on the host.
TEST(StandinCurvesTest, Preferences) { ExpectConfig("dpo_quickstart.pbtxt"); }
TEST(StandinCurvesTest, Sft) {
  ExpectConfig("sft_quickstart.pbtxt");
  ExpectConfig("sft_quickstart.pbtxt", {"train_data.packing=NONE"});
}
TEST(StandinCurvesTest, Rewards) { ExpectRewards(1); }
TEST(StandinCurvesTest, MaskedDiffusion) {
  ExpectConfig("llada_quickstart.pbtxt");
}
TEST(StandinCurvesTest, AlgorithmDistillation) {
  ExpectConfig("ad_darkroom_quickstart.pbtxt", FewHistories());
}
TEST(StandinCurvesTest, Adapters) {
  const std::vector<std::string> lora = {
      "model=capstan.decoder",
      "model.pretrained=" + Runfile("tests/golden/testdata/llama"),
      "batch.micro_batch_size=2", "batch.global_batch_size=4",
      "adapter.lora.target_modules=[\"all-linear\"]"};
  ExpectConfig("run_distributed.pbtxt", lora);
  for (const char* base : {"NF4", "FP8"}) {
    std::vector<std::string> qlora = lora;
    qlora.push_back(std::string("adapter.lora.quantize=") + base);
    ExpectConfig("run_distributed.pbtxt", qlora);
  }
}
TEST(StandinCurvesTest, MixtureOfExperts) { ExpectExperts(1); }

}  // namespace
}  // namespace capstan
