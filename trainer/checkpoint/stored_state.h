// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_STORED_STATE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_STORED_STATE_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/save.h"
#include "trainer/checkpoint/state_file.h"

namespace capstan {

// A run's state wherever it is kept: in a checkpoint's folder or in mirrors.
struct StoredState {
  std::string name;  // for errors: the folder
  Manifest manifest;
  // Opens one of the manifest's files.
  std::function<absl::StatusOr<std::unique_ptr<StateFile>>(const ManifestFile&)>
      open;
};

// Loads what this rank holds, as LoadCheckpoint; with `state` null only
// masters and working copies. Not collective.
absl::Status LoadState(const StoredState& from, const CheckpointParts& parts,
                       TrainState* state);

// BeginSave on rank 0 with the `bytes` of all ranks. Collective; throws
// CommunicationError.
absl::Status BeginTogether(const SaveRequest& request, int64_t bytes,
                           ProcessGroup& group);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_STORED_STATE_H_
