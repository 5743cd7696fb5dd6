// SPDX-License-Identifier: Apache-2.0
//
// Label smoothing and noise on embeddings: how a run is divided changes
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

constexpr char kWeights[] = "/final/model.safetensors";

std::string CausalLm(const std::string& fields) {
  return absl::StrCat("[plugin/capstan.causal_lm.Config] { ", fields, " }");
}

// Rows of 31 tokens, which two ranks don't divide.
RunText Regularized() {
  return RunText()
      .Set("train_data", TextData(CorpusPiece(20000), 31))
      .Set("objective", CausalLm("label_smoothing: 0.1 noise_alpha: 5"))
      .Batch(2, 8)
      .Train("deterministic: true");
}

// To the bit.
void ExpectSameRun(const std::string& folder, const std::string& reference) {
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(reference).losses());
  EXPECT_EQ(ReadMetrics(folder).grad_norms(),
            ReadMetrics(reference).grad_norms());
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(reference + kWeights));
}

TEST(RegularizationTest, OneRankAndTwoHaveTheSameBits) {
  const std::string one = MustTrain(Regularized());
  ExpectSameRun(MustTrain(Regularized().Ddp(2)), one);
  ExpectSameRun(MustTrain(Regularized().Batch(1, 8).Fsdp(2)),
                MustTrain(Regularized().Batch(1, 8)));
  ExpectSameRun(
      MustTrain(Regularized().Train("activation_checkpointing: EVERY_UNIT")),
      one);
  // Both do something.
  for (const char* fields : {"", "label_smoothing: 0.1", "noise_alpha: 5"}) {
    SCOPED_TRACE(fields);
    const std::string other =
        MustTrain(Regularized().Set("objective", CausalLm(fields)));
    EXPECT_NE(ReadMetrics(other).losses(), ReadMetrics(one).losses());
  }
}

TEST(RegularizationTest, RowsMayBeDivided) {
  const std::string one = MustTrain(Regularized());
  ExpectSameRun(MustTrain(Regularized().Ddp(2).Train("sequence_parallel: 2")),
                one);
  const std::string parts = MustTrain(
      Regularized().Ddp(2).Train("sequence_parallel: 2 deterministic: false"));
  const Metrics got = ReadMetrics(parts), want = ReadMetrics(one);
  ASSERT_EQ(got.losses().size(), want.losses().size());
  for (size_t i = 0; i < want.losses().size(); ++i) {
    EXPECT_NEAR(got.losses()[i], want.losses()[i], 2e-6 * want.losses()[i]);
  }
}

}  // namespace
}  // namespace capstan
