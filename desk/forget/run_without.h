// SPDX-License-Identifier: Apache-2.0
//
// From where a run has to go on so that it has never trained on some of its
// rows, and what that costs.
#ifndef CAPSTAN_DESK_FORGET_RUN_WITHOUT_H_
#define CAPSTAN_DESK_FORGET_RUN_WITHOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/session/forgotten_rows.h"

namespace capstan {

// A run's checkpoints that can be read, ascending by step.
struct RunSnapshot {
  std::string path;
  Manifest manifest;
};
// NOT_FOUND if there are none.
absl::StatusOr<std::vector<RunSnapshot>> SnapshotsOf(const std::string& run);

// The step that has read the sample at `position`, from 1: where the batch
// didn't change between two snapshots, exactly.
int64_t StepAt(int64_t position, const std::vector<RunSnapshot>& snapshots);

// The one of that step; null: there is none.
const RunSnapshot* AtStep(int64_t step,
                          const std::vector<RunSnapshot>& snapshots);

// The newest of them that was saved before the sample at `position` was read;
// null: there is none. A run that `keeps_best` needs the checkpoint of its best
// evaluation until then, too.
const RunSnapshot* LastBefore(int64_t position, bool keeps_best,
                              const std::vector<RunSnapshot>& snapshots);

// The median of the seconds that the run's steps took; 0: it doesn't say.
double SecondsOfAStep(const std::string& run);

// Makes the folder `to` of a run that goes on from the newest of some snapshots
// of the run `from`: with its config, the snapshots, metrics.jsonl (a run that
// goes on cuts it), and the receipts that lead to the newest, if there are any.
// `to` mustn't exist, unless it is empty, and has all of that or doesn't exist.
absl::Status BeginFrom(const std::vector<const RunSnapshot*>& snapshots,
                       const std::string& config_text, const std::string& from,
                       const std::string& to);

}  // namespace capstan

#endif  // CAPSTAN_DESK_FORGET_RUN_WITHOUT_H_
