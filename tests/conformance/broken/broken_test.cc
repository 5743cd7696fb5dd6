// SPDX-License-Identifier: Apache-2.0
//
// Checks that the suites can fail: each bug is found by the test meant for it,
// and a plugin without bugs passes all.
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <string>
#include <vector>

namespace {

// The output of the suite's tests, and its exit code.
struct Output {
  std::string text;
  int exit_code = -1;
};

// In `environment`, which may be "".
Output RunSuite(const std::string& environment, const std::string& filter) {
  const std::string command =
      environment +
      " tests/conformance/broken/broken_suite --gtest_color=no "
      "--gtest_filter='" +
      filter + "' 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  Output output;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    output.text.append(buffer, got);
  }
  const int status = pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Bug {
  std::string suite;
  std::string name;
  std::string test;  // that must find it
};

const std::vector<Bug>& Bugs() {
  static const auto& bugs = *new std::vector<Bug>{
      {"Strategy", "HALF_REDUCED", "OneBigBatchGivesTheReferencesCurve"},
      {"Strategy", "MEAN", "OneBigBatchGivesTheReferencesCurve"},
      {"Strategy", "LAST_MICRO_STEP", "AccumulationIsOneBigBatch"},
      {"Strategy", "STALE_GRADIENTS",
       "AnUnusedParameterHasAGradientOfZeroAndDecays"},
      {"Strategy", "ZERO_BY_MULTIPLYING", "WhatOneRankHasNotFiniteAllSkip"},
      {"Strategy", "NARROW_SUMS", "Bf16"},
      {"Strategy", "NAN_HIDDEN", "WhatOneRankHasNotFiniteAllSkip"},
      {"Strategy", "NAN_HIDDEN", "NanReachesNoCheckpoint"},
      {"Strategy", "WHOLE_SQUARED_SUM", "OneBigBatchGivesTheReferencesCurve"},
      {"Strategy", "FROZEN_FORGOTTEN", "StartsFromTheModelsValues"},
      {"Strategy", "FROZEN_TOUCHED", "FrozenParametersStayToTheBit"},
      {"Strategy", "ALL_OWNED", "EachElementHasOneOwnerAndItsValue"},
      {"Strategy", "DIRTY_PADDING", "ShardsAreWellFormed"},
      {"Strategy", "BACKWARDS", "FullParametersComeInOrderOnRank0"},
      {"Strategy", "LATE_PUBLISH", "OneBigBatchGivesTheReferencesCurve"},
      {"Strategy", "EVALUATION_DISTURBS",
       "EvaluationsGiveTheModelsLossAndDisturbNothing"},
      {"Strategy", "GIVES_UP", "ARankThatFailsLeavesNoneWaiting"},
      {"Strategy", "HANGS", "ARankThatFailsLeavesNoneWaiting"},
      {"Strategy", "WRONG_PLAN", "PlansWhatItHolds"},
      {"Strategy", "MAKES_NAN", "StartsFromTheModelsValues"},
      {"Strategy", "MAKES_NAN", "FullParametersComeInOrderOnRank0"},
      {"Strategy", "FORGETS_STATE", "ResumesOnAnyNumberOfRanks"},
      {"Strategy", "DETERMINISTIC_LAST",
       "ADeterministicRunAddsUpAllMicroSteps"},
      {"Optimizer", "LOCAL_NORM", "UpdatesAreTheSameHoweverTheModelIsCut"},
      {"Optimizer", "TOUCHES_PADDING", "PaddingStaysZero"},
      {"Optimizer", "UNSCALED", "GradientScaleMultipliesTheGradient"},
      {"Optimizer", "STALE_WORKING_COPY", "TheWorkingCopyIsTheRoundedMaster"},
      {"Optimizer", "HIDDEN_STATE", "GoesOnFromItsState"},
      {"Optimizer", "UPHILL", "GoesDownhill"},
      {"Optimizer", "OWN_RATE", "ALearningRateOfZeroLeavesTheMasters"},
      {"Optimizer", "NO_DEVICE_SCALE", "TheDeviceScaleMultipliesToo"},
      {"Optimizer", "NO_DEVICE_SCALE", "ADeviceScaleThatIsNotFiniteSkips"},
      {"Optimizer", "MAKES_NAN", "GradientScaleMultipliesTheGradient"},
      {"Precision", "NARROW_MASTERS", "SumsAndMastersHoldWhatIsComputed"},
      {"Precision", "UNSCALED", "Float16ScalesItsLoss"},
      {"Precision", "SCALE_OF_1000",
       "LossScalesArePowersOfTwoWithinTheirLimits"},
      {"Precision", "BELOW_MINIMUM",
       "LossScalesArePowersOfTwoWithinTheirLimits"},
      {"Precision", "CHANGING", "ThePolicyIsConstant"},
      {"DatasetReader", "SORTED", "RowsComeInTheOrderOfTheIndices"},
      {"DatasetReader", "RANDOM", "ReadIsAFunctionOfItsIndices"},
      {"DatasetReader", "SHARED_BUFFER", "ThreadsMayReadAtOnce"},
      {"DatasetReader", "UNCHECKED", "AnIndexThatIsNotThereIsAnError"},
      {"DatasetReader", "CRASHES", "AnIndexThatIsNotThereIsAnError"},
      {"DatasetReader", "OVERLAPPING", "ValidationIsConstantAndApart"},
      {"DatasetReader", "SHORT_TENSOR", "BatchesAreWholeTensorsInHostMemory"},
      {"DatasetReader", "GROWS", "SizeIsPositiveAndConstant"},
      {"DatasetReader", "STRANGE_TOKEN", "TokensAreTheTokenizers"},
      {"DatasetReader", "KEEPS_TENSORS", "AUsedBatchIsReadAnew"},
  };
  return bugs;
}

TEST(BrokenTest, WithoutABugAllPass) {
  const Output output = RunSuite("", "NONE/*");
  EXPECT_EQ(output.exit_code, 0) << output.text;
  for (const std::string suite :
       {"Strategy", "Optimizer", "Precision", "DatasetReader"}) {
    EXPECT_TRUE(Has(output.text, "NONE/" + suite + "Conformance"));
  }
}

// All in one process: a suite's failures don't affect the next one.
TEST(BrokenTest, EachBugIsFound) {
  std::vector<std::string> names;
  std::string filter;
  for (const Bug& bug : Bugs()) {
    names.push_back(bug.name + "/" + bug.suite + "Conformance." + bug.test +
                    "/0");
    filter += (filter.empty() ? "" : ":") + names.back();
  }
  // How long to wait for HANGS, in seconds.
  const Output output = RunSuite("CAPSTAN_CONFORMANCE_SILENCE=5", filter);
  EXPECT_EQ(output.exit_code, 1);
  for (const std::string& name : names) {
    EXPECT_TRUE(Has(output.text, "[  FAILED  ] " + name)) << name;
  }
  EXPECT_TRUE(
      Has(output.text, "killed: no rank has reported anything for 5 s"));
  if (HasFailure()) fprintf(stderr, "%s\n", output.text.c_str());
}

}  // namespace
