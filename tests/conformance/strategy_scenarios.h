// SPDX-License-Identifier: Apache-2.0
//
// What ranks go through for the strategy suite: a list of scenarios in one set
// of processes, since starting those takes longer than most scenarios.
#ifndef CAPSTAN_TESTS_CONFORMANCE_STRATEGY_SCENARIOS_H_
#define CAPSTAN_TESTS_CONFORMANCE_STRATEGY_SCENARIOS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/conformance/ranks.h"
#include "tests/conformance/toy_trainer.h"

namespace capstan {
namespace conformance {

constexpr int kMaxWorld = 4;
// Steps of the scenario "whole" on up to two ranks.
constexpr int kLongRun = 10;
// Of "accumulated", and of "whole" on more ranks; when the former saves.
constexpr int kSavedRun = 6;
constexpr int kSavedStep = 3;
// Of the others.
constexpr int kShortRun = 4;
// Of the scenarios "broken_*": the step whose gradient is not finite.
constexpr int kBrokenStep = 1;

// More topics of RankReport::Problem.
constexpr char kEvaluationTopic[] = "Evaluation";
constexpr char kNonFiniteTopic[] = "NonFinite";
constexpr char kFaultTopic[] = "Fault";
constexpr char kFrozenTopic[] = "Frozen";

struct Scenario {
  enum Kind {
    kTrain,     // steps, and saves at kSavedStep if there is a folder
    kEvaluate,  // steps, with evaluations of all kinds in between
    kBroken,    // steps, one of which is not finite on the last rank alone
    kResume,    // loads from the folder and goes on to `steps`
    kFault,     // a step in which a rank or two fail
  };
  std::string name;
  Kind kind = kTrain;
  ToyRun run;
  int steps = kShortRun;
  std::string folder;
  std::vector<StepFault> faults;  // of kFault
};

// How many micro-steps the accumulating scenarios have: different ones, all
// more than one.
int AccumulationOf(int world);

// All but kResume and kFault: the more ranks, the fewer, as a collective takes
// its time on a few cores. "accumulated" saves into `folder`.
std::vector<Scenario> TrainingScenarios(int world, const std::string& folder);
// "from_N" for each of `folders`, by world size N, and "matrices_from_N" where
// "matrices" has saved; "" is left out.
std::vector<Scenario> ResumeScenarios(const std::vector<std::string>& folders);
std::vector<Scenario> FaultScenarios(int world);

// On one rank, the scenarios one after another. What a scenario reports has
// its name before it: NAME/step {loss, norm, applied} a step, NAME/eval
// {loss}, NAME/end {} when it is through, and what ReportOwned and ReportFull
// add.
absl::Status RunScenarios(const LoadedPluginUnderTest& plugin,
                          const std::vector<Scenario>& scenarios,
                          ProcessGroup* group, RankReport* report);

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_STRATEGY_SCENARIOS_H_
