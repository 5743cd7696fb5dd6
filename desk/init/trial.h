// SPDX-License-Identifier: Apache-2.0
//
// What a recipe takes: looked up in its data, planned, and tried.
#ifndef CAPSTAN_DESK_INIT_TRIAL_H_
#define CAPSTAN_DESK_INIT_TRIAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/scratch_folder.h"
#include "desk/init/recipe.h"
#include "desk/init/undo.h"

namespace capstan::init {

// Where the run is to be.
struct Target {
  std::string launcher;  // "slurm", ..; "": this machine
  int64_t nodes = 1;
  int processes = 1;       // ranks of a node
  int64_t gpu_memory = 0;  // bytes that each rank's GPU has; 0: they have none

  int ranks() const { return static_cast<int>(nodes) * processes; }
  bool on_gpus() const { return gpu_memory > 0; }
  bool here() const { return launcher.empty(); }
};

// What the reader says of the data.
struct DataFacts {
  int64_t samples = 0;  // to train on, as the recipe reads them
  // In tokens, of kRows and kPairs.
  int64_t median = 0;
  int64_t almost_all = 0;  // the 99th percentile
  int64_t longest = 0;
};

// Removes the folder of runs that were tried, even if one that was just killed
// still ends a call that makes a file.
void RemoveTriedFolder(const ScratchFolder& folder);

class Trial {
 public:
  explicit Trial(const Target& target) : target_(target) {}

  // Opens the data as the recipe reads it. Errors are the reader's.
  absl::StatusOr<DataFacts> Read(const Recipe& recipe);

  // Fills in actions and observation of learning histories.
  absl::Status FillEnvironment(Recipe* recipe);

  // Sets recipe->fit to what fits into the target's memory and costs the least
  // time; returns a line about it. With `may_adapt` all weights are tried
  // first, then an adapter. RESOURCE_EXHAUSTED: nothing fits.
  absl::StatusOr<std::string> Fit(bool may_adapt, Recipe* recipe);

  // Seconds of a step, by running a few on this machine for `limit_seconds` at
  // most. nullopt: there was none, or the target is elsewhere.
  absl::optional<double> MeasureStep(const Recipe& recipe,
                                     double limit_seconds);

 private:
  // Writes the recipe as a config of absolute paths; returns its file.
  absl::StatusOr<std::string> Draft(const Recipe& recipe);

  const Target target_;
  const ScratchFolder folder_;
  const Undo remove_folder_{[this] { RemoveTriedFolder(folder_); }};
};

// Steps of a run that was tried.
struct TriedSteps {
  std::vector<double> seconds;  // but those of the first
  // In a step, of rank 0: what it waited for collectives at least, when no rank
  // waited for another, and what it sent.
  double exposed = 0.0;
  double bytes_sent = 0.0;
  int64_t process = 0;  // bytes of the largest rank's process, at its peak
  // Cores that other programs kept busy meanwhile, the mean.
  double others = 0.0;
};

struct TrialLimits {
  size_t steps = 3;         // and no fewer than
  double seconds = 0.0;     // of steps, but
  double all_seconds = 60;  // in all, with the start
};

// Runs steps of the run that these words of a command line start, below
// `folder`. Without a step `seconds` is empty; FOLDER/log has what was printed.
TriedSteps TrySteps(std::vector<std::string> words, const std::string& folder,
                    const TrialLimits& limits);

// Median seconds of a step but the first of that run, by a few, for
// `limit_seconds` at most. nullopt: there was none.
absl::optional<double> StepSecondsOf(std::vector<std::string> words,
                                     const std::string& folder,
                                     double limit_seconds);

}  // namespace capstan::init

#endif  // CAPSTAN_DESK_INIT_TRIAL_H_
