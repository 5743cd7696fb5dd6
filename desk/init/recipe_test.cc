// SPDX-License-Identifier: Apache-2.0
#include "desk/init/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace capstan::init {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string TextOf(int64_t steps, int64_t micro_batch) {
  Recipe recipe;
  recipe.data = "/data/rows.jsonl";
  recipe.kind = DataKind::kRows;
  recipe.model = "/data/model";
  recipe.learning_rate = 2e-5;
  recipe.held_back = 0.05;
  recipe.fit.strategy = "capstan.ddp";
  recipe.fit.micro_batch = micro_batch;
  recipe.fit.global_batch = 16;
  recipe.max_steps = recipe.all_steps = steps;
  return ConfigText(recipe, "/data", "init");
}

// A tenth of 171 steps is 51 batches of a forward pass alone.
TEST(RecipeTest, EvaluationsTakeATenthOfTheTime) {
  EXPECT_THAT(TextOf(171, 16),
              HasSubstr("eval_every: 86\n  eval_batches: 25\n"));
  EXPECT_THAT(TextOf(171, 4),
              HasSubstr("eval_every: 18\n  eval_batches: 20\n"));
  EXPECT_THAT(TextOf(100000, 16),
              HasSubstr("eval_every: 10000\n  eval_batches: 50\n"));
  EXPECT_THAT(TextOf(1, 16), HasSubstr("eval_every: 1\n  eval_batches: 1\n"));
}

// What a config takes where it says nothing isn't said otherwise.
TEST(RecipeTest, OnlyTheRateIsSaidOfTheOptimizer) {
  const std::string text = TextOf(10, 1);
  EXPECT_THAT(text, HasSubstr("adamw.Config] { learning_rate: 2e-05 }"));
  for (const char* taken : {"schedule", "seed", "max_grad_norm"}) {
    EXPECT_THAT(text, Not(HasSubstr(taken)));
  }
}

}  // namespace
}  // namespace capstan::init
