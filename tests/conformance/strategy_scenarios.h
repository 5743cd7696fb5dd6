// SPDX-License-Identifier: Apache-2.0
//
// The scenarios of the strategy suite. One set of processes runs a list of
// them, since starting processes takes longer than most scenarios.
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
// Steps of scenario "whole" on up to two ranks.
constexpr int kLongRun = 10;
// Steps of "accumulated", and of "whole" on more ranks; when the former saves.
constexpr int kSavedRun = 6;
constexpr int kSavedStep = 3;
// Steps of the others.
constexpr int kShortRun = 4;
// Of "exported": within a round of a strategy that synchronises every other
// step.
constexpr int kExportedRun = 3;
// The step with a non-finite gradient in scenarios "broken_*".
constexpr int kBrokenStep = 1;

// Further topics of RankReport::Problem.
constexpr char kEvaluationTopic[] = "Evaluation";
constexpr char kNonFiniteTopic[] = "NonFinite";
constexpr char kFaultTopic[] = "Fault";
constexpr char kFrozenTopic[] = "Frozen";
constexpr char kExportTopic[] = "Export";

struct Scenario {
  enum Kind {
    kTrain,     // steps, and saves at kSavedStep if there is a folder
    kEvaluate,  // steps, with all kinds of evaluation in between
    kBroken,    // steps, one of which is not finite on the last rank alone
    kResume,    // loads from the folder and continues to `steps`
    kFault,     // a step in which one or two ranks fail
    kExport,    // steps, and what a run does after its last one
  };
  std::string name;
  Kind kind = kTrain;
  ToyRun run;
  int steps = kShortRun;
  std::string folder;
  std::vector<StepFault> faults;  // of kFault
};

// The number of micro-steps in accumulating scenarios: different per world
// size, always more than one.
int AccumulationOf(int world);

// All but kResume and kFault; fewer on more ranks, as collectives are slow on a
// few cores. "accumulated" saves into `folder`, "matrices", "bf16" and
// "deterministic" into folders of their names there.
std::vector<Scenario> TrainingScenarios(int world, const std::string& folder);
// "from_N" for each of `folders`, by world size N, and "matrices_from_N" and so
// on where these have saved; skips "". They run on `ranks` ranks, with the
// micro-batches of the run that saved if these can be dealt to so many ranks.
// bf16 and deterministic runs are resumed on as many ranks, and on one other
// number.
std::vector<Scenario> ResumeScenarios(int ranks,
                                      const std::vector<std::string>& folders);
std::vector<Scenario> FaultScenarios(int world);

// Runs the scenarios one after another on one rank. Reports NAME/step {loss,
// norm, applied} per step, NAME/eval {loss}, NAME/end {} when done, and what
// ReportOwned and ReportFull add.
absl::Status RunScenarios(const LoadedPluginUnderTest& plugin,
                          const std::vector<Scenario>& scenarios,
                          ProcessGroup* group, RankReport* report);

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_STRATEGY_SCENARIOS_H_
