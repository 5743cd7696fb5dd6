// SPDX-License-Identifier: Apache-2.0
//
// What a run says of its precision, on CPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/simd/instruction_set.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kNoFaster[] = "no faster than in float32";

TEST(PrecisionTest, AutoIsFloat32OnACpu) {
  const RunText run = RunText().Ddp(2).Train("max_steps: 2");
  const RunText chosen =
      RunText(run).Precision("auto").Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + chosen.File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("capstan.auto (float32)"),
                                Not(HasSubstr(kNoFaster))));
  const std::string& folder = chosen.output();
  EXPECT_EQ(ReadJson(folder + "/summary.json")["precision"],
            "capstan.auto (float32)");
  EXPECT_THAT(ReadText(folder + "/final/README.md"),
              HasSubstr("capstan.auto (float32)"));
  const std::string fp32 = MustTrain(RunText(run).Precision("fp32"));
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(fp32).losses());
  EXPECT_TRUE(ReadText(folder + "/final/model.safetensors") ==
              ReadText(fp32 + "/final/model.safetensors"));
}

TEST(PrecisionTest, WhereSixteenBitsGainNothingItIsSaid) {
  for (const char* precision : {"bf16", "fp16"}) {
    const RunText run = RunText()
                            .Precision(precision)
                            .Train("max_steps: 1")
                            .Output(NewTestFolder("run") + "/out");
    const std::string config = "--config=" + run.File();
    for (const std::string command : {"check", "plan", "train"}) {
      const TrainerResult result = RunTrainer({command, config});
      ASSERT_EQ(result.exit_code, 0) << result.err;
      if (precision == std::string("bf16") && HasFastBf16Products()) {
        EXPECT_THAT(result.out, Not(HasSubstr(kNoFaster))) << command;
        continue;
      }
      EXPECT_THAT(result.out, AllOf(HasSubstr(kNoFaster),
                                    HasSubstr("precision=capstan.fp32"),
                                    HasSubstr("precision=capstan.auto")))
          << command;
    }
  }
  const TrainerResult result =
      RunTrainer({"check", "--config=" + RunText().File()});
  EXPECT_THAT(result.out, Not(HasSubstr(kNoFaster)));
}

// A run of three layers, of which the one between takes 8 bits.
RunText InFp8(const std::string& fields = "") {
  RunText run;
  run.Set("model",
          "[plugin/capstan.llama.Config] { vocab_size: 256 hidden_size: 32 "
          "intermediate_size: 96 num_hidden_layers: 3 num_attention_heads: 4 "
          "num_key_value_heads: 2 max_position_embeddings: 64 }");
  run.Set("precision",
          absl::StrCat("[plugin/capstan.fp8.Config] { ", fields, " }"));
  return run.Train("max_steps: 4 log_every: 1");
}

TEST(PrecisionTest, Fp8LogsWhatItLoses) {
  const std::string folder = MustTrain(InFp8("log_underflow: true"));
  const Metrics metrics = ReadMetrics(folder);
  ASSERT_EQ(metrics.steps.size(), 4);
  for (const nlohmann::json& step : metrics.steps) {
    for (const char* kind : {"inputs", "weights", "gradients"}) {
      const std::string name = absl::StrCat("fp8_underflow_", kind);
      ASSERT_TRUE(step.contains(name)) << step;
      EXPECT_GE(step[name], 0.0) << step;
      EXPECT_LT(step[name], 0.05) << step;
    }
    EXPECT_GT(step["fp8_underflow_inputs"], 0.0) << step;
  }
  // Counting changes nothing, and may change in a run that is resumed.
  const std::string plain = MustTrain(InFp8());
  EXPECT_EQ(ReadMetrics(plain).losses(), metrics.losses());
}

TEST(PrecisionTest, Fp8ScalesAndLayersMakeADifferenceAndResumesAreTheSameBits) {
  const std::vector<double> tensor = ReadMetrics(MustTrain(InFp8())).losses();
  EXPECT_NE(ReadMetrics(MustTrain(InFp8("scaling: ROW"))).losses(), tensor);
  EXPECT_NE(ReadMetrics(MustTrain(InFp8("bf16_layers_at_start: 0"))).losses(),
            tensor);
  EXPECT_NE(ReadMetrics(MustTrain(InFp8().Precision("bf16"))).losses(), tensor);

  const std::string folder = NewTestFolder("run") + "/out";
  MustTrain(InFp8().Train("max_steps: 2").Output(folder));
  MustTrain(InFp8("log_underflow: true").Train("resume: AUTO").Output(folder));
  EXPECT_EQ(ReadMetrics(folder).losses(), tensor);
}

// The folder is read in float32: what 8 bits round is no other model.
TEST(PrecisionTest, Fp8OfAllLayersLeavesItsModel) {
  RunText run = RunText::Golden();
  run.Set("precision",
          "[plugin/capstan.fp8.Config] { bf16_layers_at_start: 0 "
          "bf16_layers_at_end: 0 }");
  EXPECT_TRUE(std::filesystem::exists(MustTrain(run.Train("max_steps: 2")) +
                                      "/final/model.safetensors"));
}

TEST(PrecisionTest, Fp8IsRefusedWhereNoLayerWouldHaveIt) {
  for (const std::string command : {"check", "plan", "train"}) {
    const TrainerResult result = RunTrainer(
        {command, "--config=" + InFp8("bf16_layers_at_end: 2").File()});
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.err, AllOf(HasSubstr("bf16_layers_at_start: is 1"),
                                  HasSubstr("the model has 3 layers")))
        << command;
  }
}

}  // namespace
}  // namespace capstan
