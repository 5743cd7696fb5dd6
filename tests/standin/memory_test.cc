// SPDX-License-Identifier: Apache-2.0
//
// What GPUs tell of memory: the plan is near the peak of LibTorch's allocator,
// which is the real one here; a run that is out of memory leaves a snapshot.
// And of utilisation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// "33.8 MiB".
double Bytes(const std::string& text) {
  const double number = std::stod(text);
  if (text.find("KiB") != std::string::npos) return number * (1 << 10);
  if (text.find("MiB") != std::string::npos) return number * (1 << 20);
  return number * (1 << 30);
}

// The groups of the first match.
std::smatch Found(const std::string& text, const char* pattern) {
  std::smatch found;
  EXPECT_TRUE(std::regex_search(text, found, std::regex(pattern))) << text;
  return found;
}

void ExpectPlanned(int gpus, const std::vector<std::string>& args,
                   const std::string& gpu = "a100") {
  const StandinRun run = RunOn(gpus, args, "gpu=" + gpu);
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  const std::smatch found = Found(
      run.result.out, "all tensors +planned +(\\S+ .iB) +measured +(\\S+ .iB)");
  const double measured = Bytes(found[2]);
  EXPECT_NEAR(Bytes(found[1]), measured, 0.1 * measured) << found[0];
}

// `model`: a config.json in this folder; "": the config's own.
void ExpectPlanned(int gpus, const std::string& strategy,
                   const std::string& precision, const std::string& model = "",
                   const std::string& gpu = "a100",
                   const std::vector<std::string>& more = {}) {
  SCOPED_TRACE(model + " " + strategy + " in " + precision);
  std::vector<std::string> fields = {
      "strategy=capstan." + strategy, "precision=capstan." + precision,
      "batch.micro_batch_size=8", "batch.global_batch_size=16",
      "train_data.sequence_length=64"};
  fields.insert(fields.end(), more.begin(), more.end());
  if (!model.empty()) {
    fields.push_back("model=capstan.decoder");
    fields.push_back("model.config=" + Runfile("tests/standin/" + model));
  }
  ExpectPlanned(gpus, ShortRun(gpus, fields), gpu);
}

TEST(StandinMemoryTest, SingleBFloat16) { ExpectPlanned(1, "single", "bf16"); }
TEST(StandinMemoryTest, Single) { ExpectPlanned(1, "single", "fp32"); }
TEST(StandinMemoryTest, DdpBFloat16) { ExpectPlanned(2, "ddp", "bf16"); }
TEST(StandinMemoryTest, Zero2) { ExpectPlanned(2, "zero2", "fp32"); }
TEST(StandinMemoryTest, FsdpBFloat16) { ExpectPlanned(2, "fsdp", "bf16"); }
TEST(StandinMemoryTest, Recomputed) {
  ExpectPlanned(1, "single", "bf16", "", "a100",
                {"train.activation_checkpointing=EVERY_UNIT"});
}
TEST(StandinMemoryTest, EightBits) {
  for (const char* scaling : {"TENSOR", "ROW"}) {
    ExpectPlanned(1, "single", "fp8", "", "h100",
                  {absl::StrCat("precision.scaling=", scaling)});
  }
  ExpectPlanned(2, "fsdp", "fp8", "", "h100");
}
TEST(StandinMemoryTest, RecomputedMlp) {
  const std::string mlp = "train.activation_checkpointing=MLP";
  ExpectPlanned(1, "single", "bf16", "", "a100", {mlp});
  for (const char* gpu : {"a100", "h100"}) {  // the latter's are grouped
    ExpectPlanned(1, "single", "bf16", "qwen3_moe.json", gpu, {mlp});
  }
}
TEST(StandinMemoryTest, OffloadedInputs) {
  ExpectPlanned(1, "single", "bf16", "", "a100",
                {"train.activation_checkpointing=EVERY_UNIT",
                 "train.offload.activations=true"});
}
// LibTorch chooses cuDNN's attention there, which has workspaces.
TEST(StandinMemoryTest, H100) {
  ExpectPlanned(1, "single", "bf16", "", "h100");
}

// The gradients of 2 x 32 experts, written to the float32 sums, are a third of
// what is held.
constexpr char kExperts[] = "qwen3_moe.json";
TEST(StandinMemoryTest, ExpertsSingle) {
  ExpectPlanned(1, "single", "bf16", kExperts);
}
TEST(StandinMemoryTest, ExpertsFsdp) {
  ExpectPlanned(2, "fsdp", "bf16", kExperts);
}
// Their products are grouped there.
TEST(StandinMemoryTest, GroupedExperts) {
  ExpectPlanned(1, "single", "bf16", kExperts, "h100");
  ExpectPlanned(2, "fsdp", "bf16", kExperts, "h100");
}

// GELU, windows, norms after each part, norms of queries and keys.
constexpr char kGemma[] = "gemma3.json";
TEST(StandinMemoryTest, GemmaZero2) {
  ExpectPlanned(2, "zero2", "bf16", kGemma);
}
TEST(StandinMemoryTest, GemmaFsdp) { ExpectPlanned(2, "fsdp", "bf16", kGemma); }

// What others train, on one device.
void ExpectPlannedConfig(const std::string& config,
                         const std::vector<std::string>& more = {}) {
  SCOPED_TRACE(config);
  std::vector<std::string> args = {"--config=" + Runfile("configs/" + config)};
  std::vector<std::string> fields = Small(config);
  fields.insert(
      fields.end(),
      {"train.max_steps=2", "train.sample_prompts=", "train.eval_every=0",
       "train.eval_batches=1", "launch.processes=1", "schedule.warmup_steps=1",
       "strategy=capstan.single", "precision=capstan.bf16",
       "batch.micro_batch_size=16", "batch.global_batch_size=16"});
  fields.insert(fields.end(), more.begin(), more.end());
  for (const std::string& field : fields) {
    args.insert(args.end(), {"--set", field});
  }
  ExpectPlanned(1, args);
}
TEST(StandinMemoryTest, Sft) {
  // Of a narrow model nearly all is the head's, which the plan takes for full.
  const std::vector<std::string> wide = {
      "model.hidden_size=256", "model.intermediate_size=688",
      "model.num_attention_heads=8", "model.num_key_value_heads=4"};
  ExpectPlannedConfig("sft_quickstart.pbtxt", wide);
  // Rows are of max_length at most, and padded to their longest.
  std::vector<std::string> padded = wide;
  padded.push_back("train_data.packing=NONE");
  ExpectPlannedConfig("sft_quickstart.pbtxt", padded);
}
TEST(StandinMemoryTest, MaskedDiffusion) {
  ExpectPlannedConfig("llada_quickstart.pbtxt");
}
// With as many samples that nearly all of the memory is theirs, and one of the
// longest is among them.
TEST(StandinMemoryTest, AlgorithmDistillation) {
  std::vector<std::string> fields = FewHistories();
  for (const char* field :
       {"batch.micro_batch_size=64", "batch.global_batch_size=64"}) {
    fields.push_back(field);
  }
  for (const char* precision :
       {"precision=capstan.bf16", "precision=capstan.fp32"}) {
    for (const char* dropout : {"model.dropout=0", "model.dropout=0.1"}) {
      SCOPED_TRACE(std::string(precision) + " " + dropout);
      std::vector<std::string> more = fields;
      more.insert(more.end(), {precision, dropout});
      ExpectPlannedConfig("ad_darkroom_quickstart.pbtxt", more);
    }
  }
}
TEST(StandinMemoryTest, QuantisedBase) {
  ExpectPlannedConfig(
      "run_distributed.pbtxt",
      {"model=capstan.decoder",
       "model.pretrained=" + Runfile("tests/golden/testdata/llama"),
       "train_data.sequence_length=128",
       "adapter.lora.target_modules=[\"all-linear\"]",
       "adapter.lora.quantize=NF4"});
}

// Segments of LibTorch's allocator grow by mapped memory
// (GpuAllocatorSettings).
TEST(StandinMemoryTest, MapsMemoryUnlessTheUserSaysOtherwise) {
  const auto mapped =
      [](const std::map<std::string, std::string>& environment) {
        const StandinRun run = RunOn(
            1, ShortRun(1, {"strategy=capstan.single"}), "", "", environment);
        EXPECT_EQ(run.result.exit_code, 0) << run.result.err;
        int64_t bytes = -1;
        for (const nlohmann::json& line : run.report) {
          if (line.contains("works")) bytes = line["mapped_bytes"];
        }
        return bytes;
      };
  EXPECT_GT(mapped({}), 0);
  EXPECT_EQ(mapped({{"PYTORCH_ALLOC_CONF", "max_split_size_mb:512"}}), 0);
}

TEST(StandinMemoryTest, LogAndMetrics) {
  const StandinRun run =
      RunOn(1, ShortRun(1, {"strategy=capstan.single"}), "gpu=h100");
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  EXPECT_THAT(run.result.out,
              ContainsRegex("MFU [0-9.]+ %  GPU [0-9.]+ MiB of [0-9.]+ MiB"));
  EXPECT_THAT(run.result.out, ContainsRegex("MiB in tensors, .* reserved"));
}

// On one device a model whose tensors are more than an allocator rounds to.
std::vector<std::string> Wide(std::vector<std::string> fields) {
  fields.insert(fields.end(),
                {"model.hidden_size=128", "model.intermediate_size=344",
                 "model.num_hidden_layers=5"});
  return ShortRun(1, fields);
}

TEST(StandinMemoryTest, WhatCannotFitIsSaidAtOnce) {
  const StandinRun run =
      RunOn(1, Wide({"strategy=capstan.single"}), "memory=12M");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  EXPECT_THAT(run.result.err,
              ContainsRegex("micro_batch_size: is 2, of which a rank's tensors "
                            "take [0-9.]+ MiB at least, and a GPU here has "
                            "12.0 MiB: not even 1 fits"));
}

// The plan doesn't know what other processes have.
TEST(StandinMemoryTest, OutOfMemoryAtSetUp) {
  const StandinRun run = RunOn(
      1, Wide({"strategy=capstan.single", "train.memory_snapshot_at_oom=true"}),
      "memory=1G,occupied=1008M");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  EXPECT_THAT(run.result.err,
              ContainsRegex("out of memory at set-up .`trainer plan` expects "
                            "[0-9.]+ MiB of tensors.; .*fsdp.*; "
                            "\\S+memory_snapshot_rank0.pickle shows"));
}

TEST(StandinMemoryTest, TheBannerNamesTheCard) {
  const StandinRun run =
      RunOn(2, ShortRun(2, {"strategy=capstan.ddp"}), "gpu=a100");
  ASSERT_EQ(run.result.exit_code, 0) << run.result.err;
  EXPECT_THAT(
      run.result.out,
      ContainsRegex("devices +2 x GPU: NVIDIA A100[^\n]*, NCCL 2.28[^\n]*\n"));
  // Of categories nothing is known on a GPU.
  EXPECT_THAT(run.result.out, Not(ContainsRegex("measured +\\?")));
  EXPECT_THAT(run.result.err, Not(HasSubstr("destroy_process_group")));
}

// PyTorch's viewer looks for these keys.
TEST(StandinMemoryTest, SnapshotWhenMemoryRunsOut) {
  const StandinRun run = RunOn(
      1,
      Wide({"strategy=capstan.single", "train.memory_snapshot_at_oom=true",
            "train_data.sequence_length=128", "batch.micro_batch_size=64",
            "batch.global_batch_size=64"}),
      "memory=1G,occupied=928M");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  const std::smatch found =
      Found(run.result.err, "; (\\S+memory_snapshot_rank0\\.pickle) shows");
  std::ifstream file(found[1], std::ios::binary);
  const std::string pickle{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(pickle.substr(0, 2), "\x80\x02");
  for (const char* key : {"segments", "device_traces", "oom", "active_alloc"}) {
    EXPECT_THAT(pickle, HasSubstr(key));
  }
}

// What is on the host isn't on the device; tests/standin/exact_pinned_test
// holds the other half.
TEST(StandinMemoryTest, StateOnTheHost) {
  for (const auto& [strategy, offload] :
       {std::make_pair("zero2", "strategy.offload_optimizer.device=CPU"),
        std::make_pair("fsdp", "strategy.cpu_offload=true")}) {
    ExpectPlanned(2, strategy, "bf16", "", "a100",
                  {offload, "model.hidden_size=128",
                   "model.intermediate_size=344", "model.num_hidden_layers=5"});
  }
}

}  // namespace
}  // namespace capstan
