// SPDX-License-Identifier: Apache-2.0
//
// The folders of checkpoints in a run's folder.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_FOLDERS_H_
#define CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_FOLDERS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace capstan {

// A folder in OUTPUT_DIR/checkpoints.
struct StoredCheckpoint {
  int64_t step = 0;
  std::string path;
  // Has a manifest; the contents may still be damaged.
  bool whole = false;
};

// Returns all of them, ascending by step: step-NNNNNNNN, and what killed runs
// have left in hidden folders. If a run was killed while replacing a checkpoint
// with another of the same step, a whole one may still have its hidden name.
std::vector<StoredCheckpoint> ListCheckpoints(const std::string& output_dir);

// Returns the whole ones, the newest first, one for each step.
std::vector<StoredCheckpoint> WholeCheckpoints(const std::string& output_dir);

// Removes all but the newest `keep` checkpoints (none if `keep` <= 0) except
// those of `saved_step` and `best_step`, and what killed runs have left. Steps
// in `damaged` are neither counted nor removed. Failures are logged and
// ignored.
void RemoveOldCheckpoints(const std::string& output_dir, int keep,
                          int64_t saved_step, int64_t best_step,
                          const std::set<int64_t>& damaged = {});

// DATA_LOSS if the checkpoint of `step` in `folder` has another step's name: it
// would count as that, and hide those between.
absl::Status CheckStepOfName(const std::string& folder, int64_t step);

// Removes only what killed runs have left. No run may be saving there.
void RemoveLeftovers(const std::string& output_dir);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_FOLDERS_H_
