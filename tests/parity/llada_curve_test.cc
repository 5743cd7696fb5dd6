// SPDX-License-Identifier: Apache-2.0
//
// Masked diffusion learns alike under every strategy, on any number of ranks,
// with and without accumulation and activation checkpointing: what is hidden
// goes by the sample, and means are over all ranks and micro-batches.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/conformance/difference.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

constexpr int kGlobalBatch = 24;

// Many texts are cut, so that rows of both kinds are in most batches.
RunText TwentySteps(int micro_batch, const std::string& precision,
                    const std::string& loss) {
  RunText run;
  run.Set("model",
          "[plugin/capstan.llada.Config] { vocab_size: 257 d_model: 32 "
          "mlp_hidden_size: 88 n_layers: 2 n_heads: 4 max_sequence_length: 64 "
          "mask_token_id: 256 }");
  run.Set("objective",
          absl::StrCat("[plugin/capstan.masked_diffusion.Config] { loss: ",
                       loss, " random_length_ratio: 0.2 }"));
  run.Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 3e-3 }");
  run.Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 32));
  run.Set("eval_data", TextData(CorpusPiece(2100), 64));
  run.Train("max_steps: 20 eval_every: 10");
  return run.Batch(micro_batch, kGlobalBatch).Precision(precision);
}

// `single`, made once a precision and loss.
const Metrics& Reference(const std::string& precision,
                         const std::string& loss) {
  static auto* const made = new std::map<std::string, Metrics>;
  const std::string key = precision + loss;
  const auto found = made->find(key);
  if (found != made->end()) return found->second;
  const Metrics metrics =
      ReadMetrics(MustTrain(TwentySteps(6, precision, loss).Single()));
  EXPECT_EQ(metrics.losses().size(), 20);
  return made->emplace(key, metrics).first->second;
}

std::vector<double> EvalLosses(const Metrics& metrics) {
  std::vector<double> losses;
  for (const auto& eval : metrics.evals) losses.push_back(eval["eval_loss"]);
  return losses;
}

void ExpectSame(const RunText& run, const Metrics& want, double loss_bound,
                double norm_bound) {
  const Metrics got = ReadMetrics(MustTrain(run));
  EXPECT_LE(MaxRelativeDifference(got.losses(), want.losses()), loss_bound);
  EXPECT_LE(MaxRelativeDifference(got.grad_norms(), want.grad_norms()),
            norm_bound);
  // Of the same data with the same masks, whoever has which of it.
  EXPECT_GE(want.evals.size(), 2u);
  EXPECT_LE(MaxRelativeDifference(EvalLosses(got), EvalLosses(want)),
            loss_bound);
}

using Case = std::tuple<const char*, int>;  // strategy, ranks

class LladaCurveTest : public ::testing::TestWithParam<Case> {
 protected:
  RunText With(RunText run) {
    return run.Strategy(std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
};

TEST_P(LladaCurveTest, Float32) {
  const int ranks = std::get<1>(GetParam());
  for (const int accumulation : {1, 4}) {
    for (const char* checkpointing : {"NONE", "EVERY_UNIT"}) {
      // Two ranks have all four.
      const bool checkpoints = checkpointing != absl::string_view("NONE");
      if (ranks == 1 && (accumulation > 1) != checkpoints) continue;
      SCOPED_TRACE(absl::StrCat(accumulation, " ", checkpointing));
      RunText run =
          TwentySteps(kGlobalBatch / ranks / accumulation, "fp32", "PRETRAIN");
      run.Train(absl::StrCat("activation_checkpointing: ", checkpointing));
      ExpectSame(With(run), Reference("fp32", "PRETRAIN"), 1e-5, 1e-4);
    }
  }
}

// The mean over what is hidden, whose count each micro-batch has another of: a
// mean of ranks' means would be another number.
TEST_P(LladaCurveTest, CountsThatDiffer) {
  const int ranks = std::get<1>(GetParam());
  ExpectSame(With(TwentySteps(kGlobalBatch / ranks / 4, "fp32", "MASKED_MEAN")),
             Reference("fp32", "MASKED_MEAN"), 1e-5, 1e-4);
}

TEST_P(LladaCurveTest, Bfloat16) {
  ExpectSame(With(TwentySteps(6, "bf16", "PRETRAIN")),
             Reference("bf16", "PRETRAIN"), 1e-3, 1e-2);
}

INSTANTIATE_TEST_SUITE_P(All, LladaCurveTest,
                         ::testing::Values(Case{"single", 1}, Case{"ddp", 1},
                                           Case{"ddp", 2}, Case{"zero2", 1},
                                           Case{"zero2", 2}, Case{"fsdp", 1},
                                           Case{"fsdp", 2}),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param));
                         });

// Stopped, and gone on with by two ranks: with what would have been hidden.
TEST(LladaResumeTest, Float32) {
  RunText run = TwentySteps(6, "fp32", "PRETRAIN");
  run.Output(NewTestFolder("resume") + "/out").Train("max_steps: 10");
  MustTrain(run.Single());
  run.Train("max_steps: 20 resume: AUTO");
  ExpectSame(run.Fsdp(2), Reference("fp32", "PRETRAIN"), 1e-5, 1e-4);
}

}  // namespace
}  // namespace capstan
