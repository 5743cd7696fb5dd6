// SPDX-License-Identifier: Apache-2.0
//
// Muon learns alike under every strategy, on any number of ranks, with and
// without accumulation: matrices stay whole wherever they are updated. Models
// of all kinds, adapters and experts too.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/conformance/difference.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

constexpr int kGlobalBatch = 24;

// Where a gradient has directions that are all rounding (its rank is lower
// than its matrix's), Muon gives these some hundred times their share. Losses
// of experts, to whom few tokens come and who change with the last bit of a
// router's sum, differ most.
struct Bound {
  double loss;
  double grad_norm;
};

// An optimizer whose rates are the usual ones times a factor.
using Optimizer = std::string (*)(double factor);

struct Kind {
  const char* name;
  Optimizer optimizer;
  Bound bound;
};

std::string Muon(double factor) {
  return absl::StrCat(
      "[plugin/capstan.muon.Config] { learning_rate: ", 2e-2 * factor,
      " adamw { learning_rate: ", 3e-3 * factor, " } }");
}

std::string NorMuon(double factor) {
  return absl::StrCat(
      "[plugin/capstan.muon.Config] { learning_rate: ", 3e-3 * factor,
      " adjust_lr: MATCH_RMS_ADAMW normuon: true polynomial: "
      "POLAR_EXPRESS }");
}

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

RunText TwentySteps(const Kind& kind, int micro_batch, double factor = 1.0) {
  RunText run = RunText::Golden();
  const std::string name = kind.name;
  if (name == "Llada") {
    run.Set("model",
            "[plugin/capstan.llada.Config] { vocab_size: 257 d_model: 32 "
            "mlp_hidden_size: 88 n_layers: 2 n_heads: 4 max_sequence_length: "
            "64 mask_token_id: 256 }");
    run.Set("objective",
            "[plugin/capstan.masked_diffusion.Config] { loss: PRETRAIN }");
  } else if (name == "Experts") {
    run.Set("model",
            absl::StrCat("[plugin/capstan.decoder.Config] { pretrained: \"",
                         Runfile("tests/golden/testdata/qwen3_moe"), "\" }"));
  } else if (name == "Lora") {
    run.Set("adapter",
            "lora { rank: 4 alpha: 16 dropout: 0.1 target_modules: \"q_proj\" "
            "target_modules: \"v_proj\" target_modules: \"down_proj\" }");
  }
  run.Set("optimizer", kind.optimizer(factor));
  run.Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 24));
  run.Train("max_steps: 20");
  return run.Batch(micro_batch, kGlobalBatch);
}

void ExpectSame(const RunText& run, const Metrics& want, const Bound& bound) {
  const Metrics got = ReadMetrics(MustTrain(run));
  ASSERT_EQ(got.losses().size(), 20);
  EXPECT_LE(MaxRelativeDifference(got.losses(), want.losses()), bound.loss);
  EXPECT_LE(MaxRelativeDifference(got.grad_norms(), want.grad_norms()),
            bound.grad_norm);
}

class MuonCurveTest : public ::testing::TestWithParam<Kind> {};

TEST_P(MuonCurveTest, Float32) {
  const Kind& kind = GetParam();
  const Metrics want =
      ReadMetrics(MustTrain(TwentySteps(kind, kGlobalBatch).Single()));
  EXPECT_LT(want.losses().back(), want.losses().front() - 0.02);
  for (const auto& [strategy, ranks, accumulation] :
       std::vector<std::tuple<const char*, int, int>>{{"single", 1, 4},
                                                      {"ddp", 2, 1},
                                                      {"zero2", 2, 2},
                                                      {"zero2", 3, 1},
                                                      {"fsdp", 3, 2},
                                                      {"fsdp", 4, 1}}) {
    SCOPED_TRACE(absl::StrCat(strategy, " ", ranks, " ", accumulation));
    const RunText run = TwentySteps(kind, kGlobalBatch / ranks / accumulation)
                            .Strategy(strategy, ranks);
    ExpectSame(run, want, kind.bound);
  }
}

// The bounds are narrow enough to tell that a run is another one.
void ExpectTold(const RunText& run, const Metrics& want, const Bound& bound) {
  const Metrics got = ReadMetrics(MustTrain(run));
  EXPECT_GT(MaxRelativeDifference(got.losses(), want.losses()), bound.loss);
}

TEST_P(MuonCurveTest, AnotherRateIsTold) {
  const Kind& kind = GetParam();
  const Metrics want =
      ReadMetrics(MustTrain(TwentySteps(kind, kGlobalBatch).Single()));
  ExpectTold(TwentySteps(kind, kGlobalBatch, 1.01).Single(), want, kind.bound);
}

INSTANTIATE_TEST_SUITE_P(
    All, MuonCurveTest,
    // Eight times what is measured, of experts and in 16 bits five times.
    ::testing::Values(Kind{"Muon", Muon, {3e-6, 3e-5}},
                      Kind{"NorMuon", NorMuon, {2e-5, 2e-4}},
                      Kind{"Lora", NorMuon, {1e-6, 1e-5}},
                      Kind{"Llada", NorMuon, {3e-6, 1.5e-4}},
                      Kind{"Experts", NorMuon, {4e-3, 4e-2}}),
    [](const auto& info) { return std::string(info.param.name); });

// As of adamw's (one_curve_test): in 16 bits micro-batches are computed alike,
// and the sums' order differs.
TEST(MuonSixteenBitsTest, TheSameCurve) {
  const Kind kind = {"Muon", Muon, {2e-3, 0.06}};
  const Metrics want =
      ReadMetrics(MustTrain(TwentySteps(kind, 6).Precision("bf16").Single()));
  for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
    SCOPED_TRACE(strategy);
    ExpectSame(TwentySteps(kind, 6).Precision("bf16").Strategy(strategy, 2),
               want, kind.bound);
  }
  ExpectTold(TwentySteps(kind, 6, 1.01).Precision("bf16").Single(), want,
             kind.bound);
}

}  // namespace
}  // namespace capstan
