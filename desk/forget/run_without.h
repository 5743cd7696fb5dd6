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
struct Snapshot {
  std::string path;
  Manifest manifest;
};
// NOT_FOUND if there are none.
absl::StatusOr<std::vector<Snapshot>> SnapshotsOf(const std::string& run);

// The step that has read the sample at `position`, from 1: where the batch
// didn't change between two snapshots, exactly.
int64_t StepAt(int64_t position, const std::vector<Snapshot>& snapshots);

// The newest of them that was saved before the sample at `position` was read;
// null: there is none.
const Snapshot* LastBefore(int64_t position,
                           const std::vector<Snapshot>& snapshots);

// The median of the seconds that the run's steps took; 0: it doesn't say.
double SecondsOfAStep(const std::string& run);

// Makes the folder `to` of a run that goes on from a snapshot of the run
// `from`: with the snapshot, what metrics.jsonl has of the steps up to it, and
// the receipts that lead to it, if there are any.
absl::Status BeginFrom(const Snapshot& snapshot, const std::string& from,
                       const std::string& to);

}  // namespace capstan

#endif  // CAPSTAN_DESK_FORGET_RUN_WITHOUT_H_
