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

// What a test that has failed has printed; "" if it hasn't.
std::string OutputOf(const std::string& test, const std::string& text) {
  const size_t begin = text.find("[ RUN      ] " + test + "\n");
  const size_t end = text.find("[  FAILED  ] " + test);
  if (begin == std::string::npos || end == std::string::npos) return "";
  return text.substr(begin, end - begin);
}

struct Bug {
  std::string suite;
  std::string name;
  std::string test;  // that must find it
  std::string says;  // in its message; "": the test's name says enough
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
      {"Strategy", "ONLY_UPDATES_PUBLISH", "ResumesOnAnyNumberOfRanks"},
      {"Strategy", "LocalREPLICA_FORGOTTEN",
       "ContinuesItsOwnCurveOnAsManyRanks",
       "are not those of the run that was not interrupted"},
      {"Strategy", "LocalSHARED_NOT_RESTORED",
       "ContinuesItsOwnCurveOnAsManyRanks",
       "are not those of the run that was not interrupted"},
      {"Strategy", "LocalUSE_WITHOUT_EFFECT",
       "TheSharedModelIsOneAndReplicasAreKept",
       "after UseSharedModel(true) the ranks compute with different models"},
      {"Strategy", "LocalSTAYS_SHARED", "TheSharedModelIsOneAndReplicasAreKept",
       "UseSharedModel(false) has not brought back this rank's masters"},
      {"Strategy", "LocalNEVER_SYNCHRONISES",
       "TheSharedModelIsOneAndReplicasAreKept",
       "EndStep has not synchronised in 6 steps"},
      {"Strategy", "LocalRANKS_DRIFT", "TheSharedModelIsOneAndReplicasAreKept",
       "SharedMaster is not the same bits on all ranks"},
      {"Strategy", "LocalSUMS_GRADIENTS",
       "TheSharedModelIsOneAndReplicasAreKept",
       "with local_steps() they are not to be summed"},
      {"Strategy", "LocalSTALE_WORKING_COPY", "ShardsAreWellFormed",
       "the working copy is not the master, rounded"},
      {"Strategy", "LocalEXPORTS_NOTHING_NEW",
       "BeforeExportLeavesNothingPending",
       "BeforeExport has left the ranks' last steps out of the shared model"},
      {"Strategy", "LocalEXPORTS_TWICE", "BeforeExportLeavesNothingPending",
       "has changed the model again"},
      {"Strategy", "LocalEXPORTS_A_REPLICA", "BeforeExportLeavesNothingPending",
       "ForEachFullParameter has other values than the shared model"},
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
      {"Model", "ONE_NAME", "ParametersAreDeclaredOnceInUnitsThatExist"},
      {"Model", "WRONG_UNIT", "UsesParametersOnlyInTheirUnits"},
      {"Model", "COPIES_AT_BIND", "UsesParametersOnlyInTheirUnits"},
      {"Model", "OUTSIDE_UNITS", "UsesParametersOnlyInTheirUnits"},
      {"Model", "BY_PIECES", "InitialValuesAreTheSameInPieces"},
      {"Model", "NO_GRADIENT", "GradientsAreThoseOfTheLoss"},
      {"Model", "COUNTS_RUNS", "ABodyMayRunAgain"},
      {"Model", "UNWEIGHTED", "TheLossIsThatOfTheLogits"},
      {"Model", "ONLY_MINUS_100", "TheLossIsThatOfTheLogits"},
      {"Model", "LOOKS_AHEAD", "ACausalModelDoesntSeeWhatComes"},
      {"Model", "MIXES_ROWS", "RowsAndDocumentsDontSeeEachOther"},
      {"Model", "IGNORES_POSITIONS", "RowsAndDocumentsDontSeeEachOther"},
      {"Model", "FORGETS", "ACacheChangesNothing"},
      {"Model", "NO_CONFIG", "SaveConfigWritesConfigJson"},
      {"Model", "HALF_A_PLAN", "PlansEachUnit"},
      {"Model", "WIDE_LOGITS", "Bfloat16IsNear"},
      {"Model", "FORGETS_STATE", "AnotherInstanceHasItsState"},
      {"Model", "CREDULOUS", "AStateThatCannotBeReadIsAnError"},
      {"Objective", "MEAN", "ABatchIsTheSumOfItsRows"},
      {"Objective", "MISCOUNTS", "TargetsAreCountedWithoutTheLoss"},
      {"Objective", "IGNORES_LABELS", "WhatIsIgnoredIsNotTrainedOn"},
      {"Objective", "ONLY_MINUS_100", "WhatIsIgnoredIsNotTrainedOn"},
      {"Objective", "WIDE_LOSS", "TheLossIsAFloatWithAGradient"},
      {"Objective", "RANDOM", "TheSameBatchHasTheSameLoss"},
      {"Objective", "READS_PADDING", "PaddingChangesNothing"},
      {"Objective", "SURPRISE_METRIC", "MetricsAreWhatTheirTagsSay"},
      {"Objective", "OWN_RUNNER", "ForwardsRunInUnits"},
      {"Objective", "DEAF", "SamplesContinueThePrompt"},
      {"Objective", "CONSTANT", "ABatchWithoutTargetsContributesNothing"},
      {"Objective", "FORGETS", "AnotherInstanceGoesOnFromItsState"},
      {"Objective", "CREDULOUS", "AStateThatCannotBeReadIsAnError"},
      {"Objective", "DROPS_ROWS", "RolloutsKeepMicroBatchesAndRows"},
      {"Objective", "OWN_DICE", "RolloutsAreAFunctionOfSeedAndStep"},
      {"Objective", "LEAVES_EARLY", "RolloutsGoOnUntilAllAreDone"},
      {"Objective", "NO_REASON", "ACurveOfItsOwnHasABoundAndAReason"},
      {"Collector", "WORKS_AT_ONCE", "CreatingDoesNoWork",
       "has written before Collect: output"},
      {"Collector", "MOVES_OUTPUT", "TheOutputIsConstant",
       "output() after Collect"},
      {"Collector", "LEAVES_A_LOG", "NothingButTheOutputIsLeft",
       "left beside output(): output (790 bytes), output.log (3 bytes)"},
      {"Collector", "RANDOM", "TheSameConfigGivesTheSameBytes",
       "collected again by the same instance"},
      {"Collector", "APPENDS", "ReplacesWhatWasThere",
       "something of the older output is left"},
      {"Collector", "IN_PLACE", "TheOutputIsThereWholeOrNotAtAll",
       "neither what was there before nor what is there now"},
      {"Collector", "PERCENT", "ProgressIsAFractionToldByTheCallingThread",
       "is not in [0, 1]"},
      {"Collector", "OTHER_THREAD", "ProgressIsAFractionToldByTheCallingThread",
       "progress was called by another thread"},
      {"Collector", "CHATTY", "ProgressIsAFractionToldByTheCallingThread",
       "a few times a second, not 100 times"},
      {"Collector", "SILENT", "ProgressIsAFractionToldByTheCallingThread",
       "progress was never called"},
      {"Collector", "NEVER_STOPS", "CancellingLeavesWhatWasThere",
       "progress returned false, and Collect OK"},
      {"Collector", "LEAVES_HALF", "CancellingLeavesWhatWasThere",
       "a cancelled Collect has left output.partial"},
      {"Collector", "DROPS_THE_OLDER", "CancellingLeavesWhatWasThere",
       "a cancelled Collect has left nothing, not output"},
      {"Collector", "IGNORES_ERRORS", "WhatCantBeWrittenIsAnError",
       "nothing can be written below a file"},
      {"Collector", "REFUSES_ITS_OWN", "ItsOutputFitsItsConfig",
       "CheckOutput refuses what the same config made"},
      {"Collector", "NO_FIELD", "ErrorsNameAField",
       "with lines: -1 Create's error is about no field"},
      {"Command", "ADDS_ONCE", "FlagsMayBeAddedTwice",
       "the second AddFlags adds other flags"},
      {"Command", "SHARED_FLAGS", "FlagsAreMembersOfTheirObject",
       "--count of two objects is one variable"},
      {"Command", "CHATTERS", "HelpNamesEachFlagAndIsAllThatIsPrinted",
       "adding its flags prints nothing"},
      {"Command", "EXITS", "RunReturnsItsExitCode",
       "it is to return the exit code"},
      {"Command", "CRASHES", "AWrongValueIsAnErrorOfOneLineOrNone",
       "a wrong value kills the command"},
      {"Command", "LONG_ERROR", "AWrongValueIsAnErrorOfOneLineOrNone",
       "an error is one line on standard error"},
      {"Command", "STRANGE_FLAG", "AWrongValueIsAnErrorOfOneLineOrNone",
       "--number, which is no flag of the command"},
      {"Part", "OTHER_INTERFACE", "ImplementsItsInterface",
       "the part isn't a acme::Lamp"},
      {"Part", "NO_FIELD", "ErrorsNameAField",
       "with watts: -1 Create's error is about no field"},
      {"Part", "STRANGE_FIELD", "ErrorsNameAField",
       "is about \"volts\", which is no field of its config"},
      {"Part", "CRASHES", "ErrorsNameAField", "its Create crashed"},
      {"Part", "NULL_POINTER", "CreatePartFindsIt", "a null pointer"},
  };
  return bugs;
}

TEST(BrokenTest, WithoutABugAllPass) {
  const Output output = RunSuite("", "NONE/*:LocalNONE/*");
  EXPECT_EQ(output.exit_code, 0) << output.text;
  for (const std::string suite :
       {"Strategy", "Optimizer", "Precision", "DatasetReader", "Model",
        "Objective", "Collector", "Command", "Part"}) {
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
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string text = OutputOf(names[i], output.text);
    EXPECT_NE(text, "") << names[i];
    EXPECT_TRUE(Has(text, Bugs()[i].says))
        << names[i] << " doesn't say \"" << Bugs()[i].says << "\"";
  }
  EXPECT_TRUE(
      Has(output.text, "killed: no rank has reported anything for 5 s"));
  if (HasFailure()) fprintf(stderr, "%s\n", output.text.c_str());
}

}  // namespace
