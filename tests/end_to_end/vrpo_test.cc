// SPDX-License-Identifier: Apache-2.0
//
// A LLaDA learns from preferences: one curve however it is divided, whether the
// reference is below an adapter or the weights that training started from.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

constexpr char kAdapter[] =
    "lora { rank: 4 alpha: 8 target_modules: 'all-linear' }";

// Pairs of different lengths.
std::string Pairs() {
  std::string rows;
  for (int i = 0; i < 24; ++i) {
    std::string numbers;
    for (int k = 0; k < 1 + 5 * i % 7; ++k) absl::StrAppend(&numbers, " ", k);
    absl::StrAppend(&rows, "{\"prompt\": \"Count ", i,
                    ":\", \"chosen\": \" Yes:", numbers,
                    "\", \"rejected\": \" No ", i, "\"}\n");
  }
  return WriteText(NewTestFolder("data") + "/pairs.jsonl", rows);
}

std::string Data(const std::string& kind) {
  return absl::StrCat("[plugin/capstan.chat.Config] { path: '", Pairs(),
                      "' tokenizer: '", Runfile("datasets/samples/tokenizer"),
                      "' kind: ", kind, " max_length: 48 }");
}

// Four pairs a step.
RunText VrpoRun() {
  return RunText()
      .Set("model",
           "[plugin/capstan.llada.Config] { vocab_size: 4097 mask_token_id: "
           "4096 d_model: 32 mlp_hidden_size: 88 n_layers: 2 n_heads: 4 "
           "max_sequence_length: 64 eos_token_id: 2 }")
      .Set("objective",
           "[plugin/capstan.masked_diffusion.Config] { loss: VRPO beta: 0.5 "
           "bound_samples: 4 }")
      .Set("train_data", Data("PREFERENCE"))
      .Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 5e-3 }")
      .Batch(2, 4)
      .Train("max_steps: 5 deterministic: true log_every: 1");
}

void ExpectOneCurve(const RunText& run) {
  const Metrics want = ReadMetrics(MustTrain(run));
  ASSERT_EQ(want.losses().size(), 5);
  ASSERT_EQ(want.Values("rewards_margins").size(), 5);
  // The model is its reference, by the same masks, and then leaves it.
  EXPECT_EQ(want.Values("rewards_chosen")[0], 0.0);
  EXPECT_EQ(want.Values("rewards_margins")[0], 0.0);
  EXPECT_NE(want.Values("rewards_margins")[4], 0.0);
  EXPECT_GT(want.grad_norms()[0], 0.0);
  for (const RunText& other :
       {RunText(run).Ddp(2), RunText(run).Zero2(2), RunText(run).Fsdp(2),
        RunText(run).Fsdp(2).Train("activation_checkpointing: EVERY_UNIT")}) {
    SCOPED_TRACE(other.Text());
    const Metrics got = ReadMetrics(MustTrain(other));
    EXPECT_EQ(got.losses(), want.losses());
    EXPECT_EQ(got.grad_norms(), want.grad_norms());
  }
  // Another micro-batch size adds gradients in another order.
  const Metrics got = ReadMetrics(MustTrain(RunText(run).Fsdp(4).Batch(1, 4)));
  ASSERT_EQ(got.losses().size(), 5);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(got.losses()[i], want.losses()[i], 1e-5);
    EXPECT_NEAR(got.grad_norms()[i], want.grad_norms()[i],
                1e-4 * want.grad_norms()[i]);
  }
}

TEST(VrpoTest, OneCurveWithTheAdapterOffForTheReference) {
  ExpectOneCurve(VrpoRun().Set("adapter", kAdapter));
}

class DividedVrpoTest : public ::testing::TestWithParam<bool> {};

// The reference is below an adapter, or the initial weights.
TEST_P(DividedVrpoTest, HasTheCurveOfOneRank) {
  RunText run = VrpoRun().Set("eval_data", Data("PREFERENCE"));
  if (GetParam()) run.Set("adapter", kAdapter);
  const Metrics want = ReadMetrics(MustTrain(run));
  const Metrics same = ReadMetrics(
      MustTrain(RunText(run).Fsdp(2).Train("sequence_parallel: 2")));
  EXPECT_EQ(same.losses(), want.losses());
  EXPECT_EQ(same.grad_norms(), want.grad_norms());
  const Metrics got = ReadMetrics(MustTrain(
      RunText(run).Ddp(2).Train("sequence_parallel: 2 deterministic: false")));
  ASSERT_EQ(got.losses().size(), want.losses().size());
  for (size_t i = 0; i < want.losses().size(); ++i) {
    EXPECT_NEAR(got.losses()[i], want.losses()[i], 1e-5);
    EXPECT_NEAR(got.grad_norms()[i], want.grad_norms()[i],
                1e-4 * want.grad_norms()[i]);
  }
  ASSERT_EQ(got.evals.size(), want.evals.size());
  for (size_t i = 0; i < want.evals.size(); ++i) {
    EXPECT_EQ(got.evals[i].value("eval_loss", 0.0) > 0.0, GetParam());
    EXPECT_NEAR(got.evals[i].value("eval_loss", 0.0),
                want.evals[i].value("eval_loss", 0.0), 1e-5);
  }
}
INSTANTIATE_TEST_SUITE_P(Reference, DividedVrpoTest, ::testing::Bool());

TEST(VrpoTest, OneCurveWithTheInitialWeightsForTheReference) {
  ExpectOneCurve(VrpoRun());
}

// Its rows are the data's, so that evaluations have a loss.
TEST(VrpoTest, TheBestIsThatOfTheLeastLoss) {
  const std::string folder =
      MustTrain(VrpoRun()
                    .Set("adapter", kAdapter)
                    .Set("eval_data", Data("PREFERENCE"))
                    .Train("max_steps: 2 eval_every: 1 keep_best: true"));
  EXPECT_TRUE(ReadJson(folder + "/summary.json")["best_eval_loss"].is_number());
}

// Of a pair both texts, computed by themselves.
TEST(VrpoTest, WhoShowsPairs) {
  for (const bool adapter : {false, true}) {
    SCOPED_TRACE(adapter);
    RunText run = VrpoRun();
    if (adapter) run.Set("adapter", kAdapter);
    const std::string folder =
        MustTrain(run.Train("save_every: 1 keep_checkpoints: 9"));
    const TrainerResult result =
        RunTrainer({"who", folder, "--step=2", "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json who = nlohmann::json::parse(result.out);
    EXPECT_EQ(who["loss"], ReadMetrics(folder).losses()[1]);
    double sum = 0.0;
    for (const nlohmann::json& row : who["rows"]) {
      EXPECT_EQ(row["texts"].size(), 2);
      sum += double{row["loss_sum"]};
      EXPECT_EQ(row["made"].count("pair_keys"), 0);
    }
    EXPECT_NEAR(sum / double{who["targets"]}, who["loss"], 1e-5);
  }
}

// Only training exchanges weights.
TEST(VrpoTest, AnEvaluationWithoutAnAdapterHasBoundsAlone) {
  const Metrics metrics =
      ReadMetrics(MustTrain(VrpoRun()
                                .Set("eval_data", Data("PREFERENCE"))
                                .Train("max_steps: 1 eval_every: 1")));
  EXPECT_TRUE(metrics.evals.empty());
  ASSERT_EQ(metrics.others.size(), 1);
  EXPECT_LT(metrics.others[0]["eval_logps_chosen"].get<double>(), 0.0);
  EXPECT_EQ(metrics.others[0].count("eval_rewards_margins"), 0);
}

TEST(VrpoTest, LearnsWhatIsPreferred) {
  const Metrics metrics = ReadMetrics(
      MustTrain(VrpoRun()
                    .Set("adapter", kAdapter)
                    .Set("eval_data", Data("PREFERENCE"))
                    .Train("max_steps: 60 eval_every: 60 log_every: 1")));
  ASSERT_EQ(metrics.evals.size(), 1);
  EXPECT_GT(metrics.evals[0]["eval_rewards_accuracies"].get<double>(), 0.9);
  EXPECT_LT(metrics.evals[0]["eval_loss"].get<double>(), 0.5);
}

TEST(VrpoTest, RowsOfAnotherKindAreNamed) {
  const auto expect = [](RunText run, const std::string& words) {
    run.Output(NewTestFolder("run") + "/out");
    ExpectOneError(RunTrainer({"--config=" + run.File()}), {words});
  };
  expect(VrpoRun().Set("train_data", Data("PROMPT")), "kind: PREFERENCE");
  expect(
      VrpoRun().Set("objective",
                    "[plugin/capstan.masked_diffusion.Config] { loss: SFT }"),
      "set loss: VRPO");
  expect(VrpoRun()
             .Set("train_data", Data("PROMPT"))
             .Set("objective",
                  "[plugin/capstan.masked_diffusion.Config] { loss: SFT }"),
         "kind: PROMPT");
  expect(VrpoRun().Set("objective", "[plugin/capstan.dpo.Config] {}"),
         "loss: VRPO");
  expect(VrpoRun()
             .Set("train_data", Data("PROMPT"))
             .Set("objective",
                  "[plugin/capstan.grpo.Config] { max_new_tokens: 4 "
                  "num_generations: 2 reward { regex { pattern: 'a' } } }"),
         "writes from left to right");
}

}  // namespace
}  // namespace capstan
