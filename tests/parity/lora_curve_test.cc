// SPDX-License-Identifier: Apache-2.0
//
// A LoRA adapter learns alike under every strategy, on any number of ranks,
// with and without accumulation and activation checkpointing: with dropout,
// whose random numbers go by the sample, too.
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

RunText TwentySteps(int micro_batch, const std::string& precision) {
  RunText run = RunText::Golden();
  run.Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 24));
  run.Set("adapter",
          "lora { rank: 4 alpha: 16 dropout: 0.1 target_modules: \"q_proj\" "
          "target_modules: \"v_proj\" target_modules: \"down_proj\" }");
  run.Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 5e-3 }");
  run.Train("max_steps: 20");
  return run.Batch(micro_batch, kGlobalBatch).Precision(precision);
}

// `single`, made once a precision.
const Metrics& Reference(const std::string& precision) {
  static auto* const made = new std::map<std::string, Metrics>;
  const auto found = made->find(precision);
  if (found != made->end()) return found->second;
  const Metrics metrics =
      ReadMetrics(MustTrain(TwentySteps(6, precision).Single()));
  EXPECT_EQ(metrics.losses().size(), 20);
  EXPECT_LT(metrics.losses().back(), metrics.losses().front() - 0.2);
  return made->emplace(precision, metrics).first->second;
}

void ExpectSame(const RunText& run, const std::string& precision,
                double loss_bound, double norm_bound) {
  const Metrics& want = Reference(precision);
  const Metrics got = ReadMetrics(MustTrain(run));
  EXPECT_LE(MaxRelativeDifference(got.losses(), want.losses()), loss_bound);
  EXPECT_LE(MaxRelativeDifference(got.grad_norms(), want.grad_norms()),
            norm_bound);
}

using Case = std::tuple<const char*, int>;  // strategy, ranks

class LoraCurveTest : public ::testing::TestWithParam<Case> {
 protected:
  RunText With(RunText run) {
    return run.Strategy(std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
};

TEST_P(LoraCurveTest, Float32) {
  const int ranks = std::get<1>(GetParam());
  for (const int accumulation : {1, 2}) {
    for (const char* checkpointing : {"NONE", "EVERY_UNIT"}) {
      // Two ranks have all four.
      const bool checkpoints = checkpointing != absl::string_view("NONE");
      if (ranks == 1 && (accumulation > 1) != checkpoints) continue;
      SCOPED_TRACE(absl::StrCat(accumulation, " ", checkpointing));
      RunText run = TwentySteps(kGlobalBatch / ranks / accumulation, "fp32");
      run.Train(absl::StrCat("activation_checkpointing: ", checkpointing));
      ExpectSame(With(run), "fp32", 1e-5, 1e-4);
    }
  }
}

TEST_P(LoraCurveTest, Bfloat16) {
  ExpectSame(With(TwentySteps(6, "bf16")), "bf16", 1e-3, 1e-2);
}

INSTANTIATE_TEST_SUITE_P(All, LoraCurveTest,
                         ::testing::Values(Case{"single", 1}, Case{"ddp", 2},
                                           Case{"zero2", 2}, Case{"fsdp", 2}),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param), "_",
                                               std::get<1>(info.param));
                         });

// What reduces and gathers otherwise.
TEST(LoraSettingsTest, Float32) {
  for (const char* strategy :
       {"[plugin/capstan.zero2.Config] { accumulation: REDUCE_ONCE }",
        "[plugin/capstan.fsdp.Config] { reshard_after_forward: false }",
        "[plugin/capstan.fsdp.Config] { cpu_offload: true accumulation: "
        "REDUCE_ONCE }"}) {
    SCOPED_TRACE(strategy);
    ExpectSame(TwentySteps(4, "fp32").Strategy(strategy, 3), "fp32", 1e-5,
               1e-4);
  }
}

}  // namespace
}  // namespace capstan
