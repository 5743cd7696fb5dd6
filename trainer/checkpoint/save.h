// SPDX-License-Identifier: Apache-2.0
//
// The parts of a save, which SaveCheckpoint (checkpoint.h) does one after
// another and BackgroundSave (background_save.h) while training goes on. None
// is collective.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_SAVE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_SAVE_H_

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"

namespace capstan {

// Which checkpoint, and what it replaces; the same on all ranks.
struct SaveRequest {
  std::string output_dir;
  TrainState train_state;
  int keep = 0;               // as in SaveCheckpoint
  int64_t best_step = -1;     // likewise
  std::set<int64_t> damaged;  // as in RemoveOldCheckpoints
  // The run's, whose files are written beside the state; null: none.
  const Tokenizer* tokenizer = nullptr;

  std::string folder() const {
    return CheckpointFolder(output_dir, train_state.step);
  }
  // Where it is written.
  std::string temporary() const;
};

// state-RRRRR-of-WWWWW.safetensors.
std::string RankFileName(int rank, int world_size);

// Rank 0's, before all others: makes request.temporary() after removing what a
// killed run has left there. Warns if the file system says that it has no room
// for `bytes`.
absl::Status BeginSave(const SaveRequest& request, int64_t bytes);

// Writes a rank's pieces, and its note for rank 0. What may pass (an
// interrupted call, an I/O error of a network file system) is tried again.
absl::Status WriteRank(const std::string& temporary, int rank, int world_size,
                       const std::vector<StatePiece>& pieces);

// Whether all ranks have: each note is there, and whole.
bool AllHaveWritten(const std::string& temporary, int world_size);

// Rank 0's, after all have written: adds the tokenizer's files, publishes the
// checkpoint and removes old ones. `manifest`: ManifestFrame.
absl::Status CommitSave(const SaveRequest& request, Manifest manifest);

// The bytes of a rank's state file, but for its header.
int64_t BytesOf(const std::vector<StatePiece>& pieces);

// RESOURCE_EXHAUSTED, naming `folder` and both numbers, unless its file system
// has room for `bytes`. OK if that can't be told.
absl::Status CheckRoom(const std::string& folder, int64_t bytes);

// Calls `attempt` up to four times, a moment apart, while it fails with a
// transient error of the file system's (ErrnoOf).
absl::Status WithRetries(const std::function<absl::Status()>& attempt);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_SAVE_H_
