// SPDX-License-Identifier: Apache-2.0
//
// Algorithm Distillation learns alike under every strategy, on one rank and on
// two, with and without accumulation: with dropout, and with a loss of two
// means over different rows (defect 1 of the original: with accumulation it
// trains on the last micro-batch only; defect 13: means of means).
#include <gtest/gtest.h>

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
constexpr int kSteps = 20;

RunText Twenty(int micro_batch) {
  RunText run;
  run.Set("model",
          "[plugin/capstan.ad_transformer.Config] { embedding: 32 layers: 2 "
          "heads: 4 n_transit: 20 compressed: true dropout: 0.1 }");
  run.Set("objective",
          "[plugin/capstan.algorithm_distillation.Config] { evaluation { "
          "episodes: 0 final_episodes: 3 streams: 2 } }");
  // An eighth of the rows have no action: means over different counts.
  run.Set("train_data",
          absl::StrCat(
              "[plugin/capstan.ad_history.Config] { path: \"",
              Runfile("plugins/algorithm_distillation/darkroom/testdata/"
                      "history_small.hdf5"),
              "\" mode: COMPRESSED region: 8 steps: 160 skip_last_action: true "
              "shuffle: true }"));
  run.Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 2e-3 }");
  run.Set("schedule", "kind: COSINE warmup_steps: 5");
  run.Train(
      absl::StrCat("max_steps: ", kSteps, " log_every: 1 eval_batches: 2"));
  return run.Batch(micro_batch, kGlobalBatch);
}

const std::string& ReferenceFolder() {
  static const std::string* const folder =
      new std::string(MustTrain(Twenty(kGlobalBatch).Single()));
  return *folder;
}

using Case = std::tuple<const char*, int>;  // strategy, ranks

class AdCurveTest : public ::testing::TestWithParam<Case> {};

TEST_P(AdCurveTest, OneCurve) {
  const auto& [strategy, ranks] = GetParam();
  const Metrics want = ReadMetrics(ReferenceFolder());
  ASSERT_EQ(want.losses().size(), kSteps);
  EXPECT_LT(want.losses().back(), want.losses().front());
  for (const int accumulation : {1, 3}) {
    SCOPED_TRACE(accumulation);
    const std::string folder = MustTrain(
        Twenty(kGlobalBatch / ranks / accumulation).Strategy(strategy, ranks));
    const Metrics got = ReadMetrics(folder);
    EXPECT_LE(MaxRelativeDifference(got.losses(), want.losses()), 1e-5);
    EXPECT_LE(MaxRelativeDifference(got.grad_norms(), want.grad_norms()), 1e-4);
    for (const char* name :
         {"loss_action", "acc_action", "loss_token_type", "acc_token_type"}) {
      EXPECT_LE(MaxRelativeDifference(got.Values(name), want.Values(name)),
                1e-4)
          << name;
    }
    // Played by one rank or by two.
    EXPECT_EQ(ReadText(folder + "/eval_result.npy"),
              ReadText(ReferenceFolder() + "/eval_result.npy"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, AdCurveTest,
                         ::testing::Values(Case{"single", 1}, Case{"ddp", 1},
                                           Case{"ddp", 2}, Case{"zero2", 1},
                                           Case{"zero2", 2}, Case{"fsdp", 1},
                                           Case{"fsdp", 2}),
                         [](const ::testing::TestParamInfo<Case>& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param));
                         });

}  // namespace
}  // namespace capstan
