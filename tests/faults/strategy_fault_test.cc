// SPDX-License-Identifier: Apache-2.0
//
// Settings of strategies that can't work are told before anything starts.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

void ExpectRefused(RunText run, const std::vector<std::string>& words) {
  run.Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ExpectOneError(result, words);
  EXPECT_FALSE(std::filesystem::exists(run.output()));
}

TEST(StrategyFaultTest, HybridGroupsMustDivideTheRanks) {
  ExpectRefused(RunText().Fsdp(3, "shard_group_size: 2").Batch(1, 6),
                {"run.pbtxt:", "strategy.shard_group_size", "is 2", "3 ranks"});
}

// A terabyte of masters and optimizer state for each rank.
TEST(StrategyFaultTest, OffloadNeedsMemoryForIt) {
  RunText run;
  run.Set("model",
          "[plugin/capstan.llama.Config] { vocab_size: 256 hidden_size: 16384 "
          "intermediate_size: 53248 num_hidden_layers: 60 "
          "num_attention_heads: 128 num_key_value_heads: 16 "
          "max_position_embeddings: 128 }");
  ExpectRefused(RunText(run).Zero2(2, "offload_optimizer { device: CPU }"),
                {"strategy", "host memory", "2 ranks"});
  ExpectRefused(RunText(run).Fsdp(2, "cpu_offload: true"),
                {"strategy", "host memory", "2 ranks"});
}

TEST(StrategyFaultTest, NegativeSettingsNameTheirField) {
  ExpectRefused(RunText().Zero2(2, "reduce_bucket_size: -5"),
                {"strategy.reduce_bucket_size", "-5"});
  ExpectRefused(RunText().Fsdp(2, "prefetch: -1"), {"strategy.prefetch", "-1"});
}

TEST(StrategyFaultTest, RecomputingEveryNthUnitWantsItsNumber) {
  ExpectRefused(RunText().Train("activation_checkpointing: EVERY_N"),
                {"train.activation_checkpointing_n", "must be greater than 0"});
  ExpectRefused(RunText().Train("activation_checkpointing_n: 2"),
                {"train.activation_checkpointing_n", "EVERY_N only"});
  ExpectRefused(RunText().Train("witness: {most_failures:3}"),
                {"train.witness.most_failures", "has no effect without check"});
  ExpectRefused(RunText().Train("witness: {twice:true}"),
                {"train.witness.twice", "has no effect without check"});
  ExpectRefused(RunText().Train("witness: {every_steps:10}"),
                {"train.witness.every_steps", "has no effect without check"});
  ExpectRefused(
      RunText().Train("max_steps: 5 witness: {check:true,every_steps:6}"),
      {"train.witness.every_steps", "is 6", "has only 5 steps"});
}

}  // namespace
}  // namespace capstan
