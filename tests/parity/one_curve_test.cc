// SPDX-License-Identifier: Apache-2.0
//
// Changing the strategy never changes the result: fifty steps of every strategy
// on one to four ranks, with and without accumulation and activation
// checkpointing, against `single`.
#include <gtest/gtest.h>

#include <iostream>
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

// One to four ranks divide it, and three or four micro-steps their shares.
constexpr int kGlobalBatch = 24;
// In 16 bits: four micro-batches of twelve.
constexpr int kGlobalBatch16 = 48;

RunText FiftySteps(int micro_batch, const std::string& precision) {
  RunText run = RunText::Golden();
  run.Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 24));
  run.Train("max_steps: 50");
  return run
      .Batch(micro_batch, precision == "fp32" ? kGlobalBatch : kGlobalBatch16)
      .Precision(precision);
}

// `single`, made once a precision and micro-batch.
const Metrics& Reference(const std::string& precision, int micro_batch) {
  static auto* const made = new std::map<std::string, Metrics>;
  const std::string key = absl::StrCat(precision, micro_batch);
  const auto found = made->find(key);
  if (found != made->end()) return found->second;
  const Metrics metrics =
      ReadMetrics(MustTrain(FiftySteps(micro_batch, precision).Single()));
  EXPECT_EQ(metrics.losses().size(), 50);
  return made->emplace(key, metrics).first->second;
}

struct Bound {
  double loss;
  double grad_norm;
};

void ExpectSame(const RunText& run, const Metrics& want, const Bound& bound) {
  const Metrics got = ReadMetrics(MustTrain(run));
  const double loss = MaxRelativeDifference(got.losses(), want.losses());
  const double norm =
      MaxRelativeDifference(got.grad_norms(), want.grad_norms());
  EXPECT_LE(loss, bound.loss);
  EXPECT_LE(norm, bound.grad_norm);
  // For bench/README.md.
  std::cout << "loss " << loss << " grad_norm " << norm << "\n";
}

using Case = std::tuple<const char*, int>;  // strategy, ranks

std::string Name(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat(std::get<0>(info.param), "_", std::get<1>(info.param));
}

class OneCurveTest : public ::testing::TestWithParam<Case> {
 protected:
  RunText With(RunText run) {
    return run.Strategy(std::get<0>(GetParam()), ranks());
  }
  int ranks() const { return std::get<1>(GetParam()); }
};

// The bounds. Only the order of float32 sums differs; what that does
// grows from step to step.
constexpr Bound kFloat32 = {1e-5, 1e-4};

TEST_P(OneCurveTest, Float32) {
  const Metrics& want = Reference("fp32", kGlobalBatch);
  for (const int accumulation : {1, ranks() == 4 ? 3 : 4}) {
    for (const char* checkpointing : {"NONE", "EVERY_UNIT"}) {
      const bool checkpoints = checkpointing != absl::string_view("NONE");
      // Two ranks have all four; one rank and four have two each, which
      // together are all four.
      if (ranks() == 1 && (accumulation > 1) != checkpoints) continue;
      if (ranks() == 4 && (accumulation > 1) == checkpoints) continue;
      SCOPED_TRACE(absl::StrCat(accumulation, " ", checkpointing));
      RunText run = FiftySteps(kGlobalBatch / ranks() / accumulation, "fp32");
      run.Train(absl::StrCat("activation_checkpointing: ", checkpointing));
      ExpectSame(With(run), want, kFloat32);
    }
  }
}

// Micro-batches of twelve sequences are computed in 16 bits alike wherever they
// run, and their gradients are summed in float32. The sums' last bits differ
// with their order, and so may, where a master lies between two 16-bit numbers,
// a parameter's last bit: docs/strategies.md derives the bounds.
TEST_P(OneCurveTest, SixteenBits) {
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const Metrics& want = Reference(precision, 12);
    ExpectSame(With(FiftySteps(12, precision)), want, {1e-3, 1e-2});
  }
}

INSTANTIATE_TEST_SUITE_P(All, OneCurveTest,
                         ::testing::Values(Case{"single", 1}, Case{"ddp", 1},
                                           Case{"ddp", 2}, Case{"ddp", 4},
                                           Case{"zero2", 1}, Case{"zero2", 2},
                                           Case{"zero2", 4}, Case{"fsdp", 1},
                                           Case{"fsdp", 2}, Case{"fsdp", 4}),
                         Name);

// Three ranks don't hold a whole number of micro-batches of twelve.
class ThreeRanksTest : public OneCurveTest {};

TEST_P(ThreeRanksTest, Float32) {
  const Metrics& want = Reference("fp32", kGlobalBatch);
  ExpectSame(With(FiftySteps(kGlobalBatch / 3, "fp32")), want, kFloat32);
  RunText run = FiftySteps(2, "fp32");
  run.Train("activation_checkpointing: EVERY_N activation_checkpointing_n: 2");
  ExpectSame(With(run), want, kFloat32);
}

INSTANTIATE_TEST_SUITE_P(All, ThreeRanksTest,
                         ::testing::Values(Case{"ddp", 3}, Case{"zero2", 3},
                                           Case{"fsdp", 3}),
                         Name);

// Settings that change when and what is sent, on three ranks, that divide
// nothing evenly.
class SettingsTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SettingsTest, Float32) {
  const Metrics& want = Reference("fp32", kGlobalBatch);
  ExpectSame(FiftySteps(2, "fp32").Strategy(GetParam(), 3), want, kFloat32);
}

INSTANTIATE_TEST_SUITE_P(
    All, SettingsTest,
    ::testing::Values(
        "[plugin/capstan.zero2.Config] { reduce_bucket_size: 5000 "
        "allgather_bucket_size: 9000 }",
        "[plugin/capstan.zero2.Config] { accumulation: REDUCE_ONCE }",
        "[plugin/capstan.zero2.Config] { overlap_comm: false "
        "offload_optimizer { device: CPU } }",
        "[plugin/capstan.fsdp.Config] { reshard_after_forward: false }",
        "[plugin/capstan.fsdp.Config] { prefetch: 0 cpu_offload: true }",
        "[plugin/capstan.fsdp.Config] { prefetch: 3 accumulation: "
        "REDUCE_ONCE }"));

TEST(HybridShardingTest, FourRanksInTwoGroups) {
  const Metrics& want = Reference("fp32", kGlobalBatch);
  for (const char* more :
       {"", "accumulation: REDUCE_ONCE", "cpu_offload: true"}) {
    ExpectSame(FiftySteps(3, "fp32").Fsdp(
                   4, absl::StrCat("shard_group_size: 2 ", more)),
               want, kFloat32);
  }
}

}  // namespace
}  // namespace capstan
