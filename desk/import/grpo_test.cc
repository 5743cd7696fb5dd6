// SPDX-License-Identifier: Apache-2.0
//
// What becomes of configs that learn from rewards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "desk/import/import_testing.h"

namespace capstan::import {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

TEST_F(ImportTest, TrlsRewards) {
  const Draft draft =
      Of("g.yaml",
         "model_name_or_path: o/m\ndataset_name: o/prompts\n"
         "reward_funcs: [accuracy_reward, my.own, think_format_reward]\n"
         "reward_weights: [1.0, 2.0, 0.5]\nnum_generations: 4\n"
         "max_completion_length: 300\nbeta: 0.04\nloss_type: dr_grpo\n"
         "epsilon: 0.1\nepsilon_high: 0.28\ntemperature: 0.9\n"
         "scale_rewards: false\nnum_iterations: 2\nuse_vllm: true\n"
         "load_best_model_at_end: true\ntest_split_size: 0.1\n"
         "vllm_mode: colocate\nper_device_train_batch_size: 8\n"
         "entropy_coef: 0.01\nsteps_per_generation: 4\nno_such: 1\n");
  Expect(draft,
         "objective: capstan.grpo; objective.num_generations: 4; "
         "objective.max_new_tokens: 300; objective.beta: 0.04; "
         "objective.loss: DR_GRPO; objective.clip_low: 0.1; "
         "objective.clip_high: 0.28; objective.temperature: 0.9; "
         "objective.advantage: GROUP_MEAN; objective.updates_per_rollout: 2; "
         "train_data.kind: PROMPT; optimizer.learning_rate: 1e-6; "
         "train.best_metric: \"eval_reward\"; no train_data.max_length; "
         "batch.micro_batch_size: 8; "
         "objective.reward#0.math_answer.field: \"solution\"; "
         "objective.reward#0.weight: 1.0; objective.reward#1.weight: 0.5; "
         "unused use_vllm; unused vllm_mode; lost reward_funcs; "
         "lost entropy_coef; lost steps_per_generation; lost no_such");
  EXPECT_THAT(draft.Text("objective.reward#1.regex.pattern"),
              HasSubstr("<think>"));
  Expect(Of("g.sh",
            "trl grpo --model_name_or_path m/m --dataset_name me/d "
            "--reward_model_name_or_path me/judge\n"),
         "objective: capstan.grpo; objective.max_new_tokens: 512; "
         "objective.reward#0.model.path: \"hf:me/judge\"; "
         "train_data.kind: PROMPT; whole");
}

// TRL's default is that a step's answers are sampled for it, in as many parts
// as it has micro-batches.
TEST_F(ImportTest, TrlsGenerations) {
  const auto with = [this](const std::string& settings) {
    return Of("g.yaml",
              "model_name_or_path: o/m\ndataset_name: o/prompts\n"
              "reward_funcs: [think_format_reward]\nnum_processes: 2\n"
              "per_device_train_batch_size: 8\n"
              "gradient_accumulation_steps: 4\n" +
                  settings);
  };
  for (const char* const same :
       {"steps_per_generation: 4\n", "steps_per_generation: 1\n",
        "generation_batch_size: 64\n", "generation_batch_size: 16\n"}) {
    const Draft draft = with(same);
    Expect(draft, "batch.global_batch_size: 64");
    EXPECT_FALSE(draft.loses()) << same;
  }
  for (const char* const older :
       {"steps_per_generation: 8\n", "generation_batch_size: 128\n"}) {
    const Draft draft = with(older);
    EXPECT_EQ(Keys(draft, Effect::kLost).size(), 1) << older;
    EXPECT_THAT(draft.table().back().note,
                HasSubstr("or set batch.global_batch_size to 128"));
  }
}

TEST_F(ImportTest, TrlsPromptLength) {
  const std::string of_both =
      "model_name_or_path: o/m\ndataset_name: o/prompts\n"
      "max_prompt_length: 700\n";
  const Draft grpo =
      Of("g.yaml", of_both + "reward_funcs: [think_format_reward]\n");
  Expect(grpo, "train_data.max_length: 700");
  EXPECT_THAT(Keys(grpo, Effect::kDiffers),
              UnorderedElementsAre("max_prompt_length"));
  Expect(Of("d.yaml", of_both + "beta: 0.1\n"),
         "objective: capstan.dpo; lost max_prompt_length");
}

}  // namespace
}  // namespace capstan::import
