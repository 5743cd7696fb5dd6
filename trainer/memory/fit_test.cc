// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/config/load_config.h"
#include "trainer/memory/memory_plan.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

FitLimits Limits(int gpus) {
  FitLimits limits;
  limits.gpus = gpus;
  limits.micro_batches = {1, 4};
  limits.global_batch = 64;
  limits.adamw = true;
  return limits;
}

TEST(FitTest, BeginsWithWhatCostsNothing) {
  const std::vector<FitChoice> choices = FitChoices(Limits(8));
  const FitChoice& first = choices.front();
  EXPECT_EQ(first.strategy, "capstan.ddp");
  EXPECT_EQ(first.micro_batch, 4);
  EXPECT_EQ(first.checkpoint_every, 0);
  EXPECT_TRUE(first.optimizer_sets.empty());
  EXPECT_TRUE(std::is_sorted(
      choices.begin(), choices.end(),
      [](const FitChoice& a, const FitChoice& b) { return a.cost < b.cost; }));
}

TEST(FitTest, OnlyWhatTheRunHas) {
  for (const FitChoice& choice : FitChoices(Limits(1))) {
    EXPECT_TRUE(choice.strategy == "capstan.single" ||
                choice.strategy == "capstan.fsdp");
    EXPECT_FALSE(choice.quantize);
  }
  FitLimits lora = Limits(2);
  lora.adamw = false;
  lora.quantizable = true;
  const std::vector<FitChoice> choices = FitChoices(lora);
  EXPECT_TRUE(std::any_of(choices.begin(), choices.end(),
                          [](const FitChoice& c) { return c.quantize; }));
  for (const FitChoice& choice : choices) {
    EXPECT_TRUE(choice.optimizer_sets.empty());
    EXPECT_FALSE(choice.paged_state);
  }
}

TEST(FitTest, LinesOfAConfig) {
  FitChoice choice;
  choice.strategy = "capstan.zero2";
  choice.strategy_sets = {"offload_optimizer.device=CPU"};
  choice.optimizer_sets = {"state=EIGHT_BIT"};
  choice.micro_batch = 2;
  choice.global_batch = 16;
  choice.checkpoint_every = 2;
  EXPECT_EQ(choice.ConfigText(),
            "strategy { [plugin/capstan.zero2.Config] { offload_optimizer { "
            "device: CPU } } }\n"
            "optimizer { [plugin/capstan.adamw.Config] { state: EIGHT_BIT } }\n"
            "batch { micro_batch_size: 2 global_batch_size: 16 }\n"
            "train {\n"
            "  activation_checkpointing: EVERY_N\n"
            "  activation_checkpointing_n: 2\n"
            "}\n");
  EXPECT_EQ(choice.Overrides(),
            std::vector<std::string>({"strategy=capstan.zero2",
                                      "strategy.offload_optimizer.device=CPU",
                                      "optimizer.state=EIGHT_BIT"}));
  choice = FitChoice();
  choice.strategy = "capstan.single";
  choice.checkpoint_every = 1;
  choice.offload_activations = choice.quantize = true;
  EXPECT_THAT(choice.ConfigText(), HasSubstr("offload { activations: true }"));
  EXPECT_THAT(choice.ConfigText(), HasSubstr("quantize: NF4_DOUBLE"));
  EXPECT_THAT(choice.ConfigText(), Not(HasSubstr("optimizer {")));
  choice = FitChoice();
  choice.recompute_mlp = true;
  EXPECT_THAT(choice.ConfigText(),
              HasSubstr("activation_checkpointing: MLP\n"));
}

// Each choice's text and overrides make the same plugin settings.
TEST(FitTest, AllLinesAreAConfig) {
  PluginHost host(
      {absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/trainer/plugins")});
  ConfigContext context;
  context.host = &host;
  context.caller_folder = ::testing::TempDir();
  for (const int gpus : {1, 8}) {
    FitLimits limits = Limits(gpus);
    limits.quantizable = true;
    for (const FitChoice& choice : FitChoices(limits)) {
      const std::string text = choice.ConfigText();
      const auto loaded = ParseConfig(text, "fit.pbtxt", context);
      ASSERT_TRUE(loaded.ok()) << loaded.status() << "\n" << text;
      const RunConfig& config = loaded->config;
      const auto set =
          ParseConfig("optimizer { [plugin/capstan.adamw.Config] {} }",
                      "run.pbtxt", context, choice.Overrides());
      ASSERT_TRUE(set.ok()) << set.status() << "\n" << text;
      EXPECT_EQ(config.strategy().SerializeAsString(),
                set->config.strategy().SerializeAsString())
          << text;
      EXPECT_EQ(config.has_optimizer(), !choice.optimizer_sets.empty()) << text;
      if (config.has_optimizer()) {
        EXPECT_EQ(config.optimizer().SerializeAsString(),
                  set->config.optimizer().SerializeAsString())
            << text;
      }
      EXPECT_EQ(config.adapter().SerializeAsString(),
                set->config.adapter().SerializeAsString())
          << text;
      EXPECT_EQ(config.batch().micro_batch_size(), choice.micro_batch);
      EXPECT_EQ(config.batch().global_batch_size(), 64);
      EXPECT_EQ(config.train().offload().activations(),
                choice.offload_activations);
      EXPECT_EQ(config.train().offload().optimizer_state(), choice.paged_state);
    }
  }
}

TEST(FitTest, AmountsOfMemory) {
  EXPECT_EQ(*BytesFromText("24GiB"), int64_t{24} << 30);
  EXPECT_EQ(*BytesFromText("80 GB"), int64_t{80000000000});
  EXPECT_EQ(*BytesFromText("1.5KiB"), 1536);
  EXPECT_EQ(*BytesFromText("4096B"), 4096);
  EXPECT_EQ(BytesFromText("80").status().message(),
            "'80' lacks a unit: write 80GB, 80GiB or, for bytes, 80B");
  for (const char* wrong : {"", "GiB", "-1GiB", "24 Gi", "nan", "1e30GiB"}) {
    EXPECT_FALSE(BytesFromText(wrong).ok()) << wrong;
  }
}

TEST(FitTest, RoomOfAGpu) {
  const int64_t mib = 1 << 20;
  const GpuRoom alone = RoomOfGpu(int64_t{24} << 30, 1);
  EXPECT_EQ(alone.nccl, 0);
  EXPECT_EQ(alone.for_tensors() + alone.context + alone.workspaces +
                alone.fragmentation,
            int64_t{24} << 30);
  // 24 channels of 10 MiB and 2 MiB, for one neighbour or two.
  EXPECT_EQ(RoomOfGpu(int64_t{24} << 30, 2).nccl, 24 * 12 * mib);
  EXPECT_EQ(RoomOfGpu(int64_t{24} << 30, 3).nccl, 2 * 24 * 12 * mib);
  EXPECT_EQ(RoomOfGpu(int64_t{24} << 30, 64).nccl, 2 * 24 * 12 * mib);
  EXPECT_EQ(RoomOfGpu(int64_t{24} << 30, 8, {1 * mib, 4}).nccl,
            2 * 4 * 10 * mib);
}

TEST(FitTest, ATableForEachGpu) {
  MemoryPlan plan;
  plan.at_peak[1] = int64_t{20} << 30;
  plan.snapshot = int64_t{3} << 30;
  const std::string fits =
      DeviceTable(plan, RoomOfGpu(int64_t{24} << 30, 2), 2);
  EXPECT_THAT(fits, HasSubstr("Each of 2 GPUs of 24.0 GiB\n"));
  EXPECT_THAT(fits, ::testing::ContainsRegex("\n  tensors +20.0 GiB\n"));
  EXPECT_THAT(fits, ::testing::ContainsRegex("\n  NCCL's buffers +288 MiB\n"));
  EXPECT_THAT(fits, ::testing::ContainsRegex("\n  left +"));
  EXPECT_THAT(fits, ::testing::ContainsRegex("copies being saved +6.00 GiB\n"));
  EXPECT_THAT(DeviceTable(plan, RoomOfGpu(int64_t{16} << 30, 1), 1),
              HasSubstr("\n  missing "));
}

}  // namespace
}  // namespace capstan
