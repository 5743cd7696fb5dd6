// SPDX-License-Identifier: Apache-2.0
//
// Every family of decoders learns alike under every strategy: eight steps on
// two ranks, with an activation checkpointing for each, against `single`; and
// from its config.json alone, with random weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/conformance/difference.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

constexpr int kGlobalBatch = 8;

RunText EightSteps(const std::string& family, int micro_batch) {
  RunText run = RunText::Golden();
  run.Set("model",
          absl::StrCat("[plugin/capstan.decoder.Config] { pretrained: \"",
                       Runfile("tests/golden/testdata/" + family), "\" }"));
  run.Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 24));
  run.Train("max_steps: 8");
  return run.Batch(micro_batch, kGlobalBatch);
}

constexpr const char* kFamilies[] = {
    "llama31", "llama_biases", "mistral", "qwen2", "qwen3", "qwen3_moe",
    "gemma2",  "gemma3",       "smollm3", "olmo2", "phi3"};

class DecoderCurveTest : public ::testing::TestWithParam<const char*> {};

TEST_P(DecoderCurveTest, TwoRanks) {
  const Metrics want =
      ReadMetrics(MustTrain(EightSteps(GetParam(), kGlobalBatch).Single()));
  ASSERT_EQ(want.losses().size(), 8);
  EXPECT_LT(want.losses().back(), want.losses().front());
  // Each strategy with another one of the checkpointings, and with all of them
  // over the families.
  const char* const checkpointings[] = {"NONE", "MLP", "EVERY_UNIT"};
  const auto family =
      static_cast<size_t>(std::find(std::begin(kFamilies), std::end(kFamilies),
                                    absl::string_view(GetParam())) -
                          std::begin(kFamilies));
  size_t next = family;
  for (const char* strategy : {"ddp", "zero2", "fsdp"}) {
    const char* const checkpointing = checkpointings[next++ % 3];
    SCOPED_TRACE(absl::StrCat(strategy, " ", checkpointing));
    RunText run = EightSteps(GetParam(), kGlobalBatch / 4);
    run.Train(absl::StrCat("activation_checkpointing: ", checkpointing));
    const Metrics got = ReadMetrics(MustTrain(run.Strategy(strategy, 2)));
    EXPECT_LE(MaxRelativeDifference(got.losses(), want.losses()), 1e-5);
    EXPECT_LE(MaxRelativeDifference(got.grad_norms(), want.grad_norms()), 1e-4);
  }
}

TEST_P(DecoderCurveTest, RandomWeightsOfAConfigFile) {
  RunText run = EightSteps(GetParam(), kGlobalBatch);
  run.Set("model",
          absl::StrCat("[plugin/capstan.decoder.Config] { config: \"",
                       Runfile("tests/golden/testdata/" +
                               std::string(GetParam()) + "/config.json"),
                       "\" vocab_size: 300 }"));
  const Metrics metrics = ReadMetrics(MustTrain(run.Single()));
  EXPECT_LT(metrics.losses().back(), metrics.losses().front());
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderCurveTest,
                         ::testing::ValuesIn(kFamilies), [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace capstan
