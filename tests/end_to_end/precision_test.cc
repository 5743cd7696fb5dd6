// SPDX-License-Identifier: Apache-2.0
//
// What a run says of its precision, on CPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace capstan
