// SPDX-License-Identifier: Apache-2.0
//
// The parts of a save, which SaveCheckpoint (checkpoint.h) does one after
// another and BackgroundSave (background_save.h) while training goes on; and of
// a load. None is collective but BeginTogether.
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
  int keep = 0;               // as in RemoveOldCheckpoints
  int64_t best_step = -1;     // likewise
  std::set<int64_t> damaged;  // as in RemoveOldCheckpoints
  // The run's, whose files are written beside the state; null: none.
  const Tokenizer* tokenizer = nullptr;
  // BeginTogether chooses it. Ranks that don't know yet that an earlier save of
  // this step is lost write to another folder.
  uint64_t attempt = 0;

  std::string folder() const {
    return CheckpointFolder(output_dir, train_state.step);
  }
  // Returns the folder in which it is written.
  std::string temporary() const;
};

// state-RRRRR-of-WWWWW.safetensors.
std::string RankFileName(int rank, int world_size);

// Makes request.temporary() after removing what killed runs have left.
// Rank 0 calls it before all ranks write. Warns if the file system reports less
// room than `bytes`.
absl::Status BeginSave(const SaveRequest& request, int64_t bytes);

// Chooses request->attempt, and calls BeginSave on rank 0 with the sum of all
// ranks' `bytes`. Collective; throws CommunicationError.
absl::Status BeginTogether(SaveRequest* request, int64_t bytes,
                           ProcessGroup& group);

// Writes a rank's pieces, and its note for rank 0. Retries after errors that
// may pass (an interrupted call, an I/O error of a network file system). An
// error that IsLostPeer if rank 0 has given the save up meanwhile.
absl::Status WriteRank(const std::string& temporary, int rank, int world_size,
                       const std::vector<StatePiece>& pieces);

// Rank 0: removes what was written for a save that failed. Others may still be
// writing, if they don't know yet that a rank is lost.
void GiveUpSave(const SaveRequest& request);

// Whether all ranks have written: each note exists.
bool AllHaveWritten(const std::string& temporary, int world_size);

// Adds the tokenizer's files, publishes the checkpoint and removes old ones.
// Rank 0 calls it after all have written. `manifest` is ManifestFrame's.
absl::Status CommitSave(const SaveRequest& request, Manifest manifest);

// Returns the bytes of a rank's state file, without its header.
int64_t BytesOf(const std::vector<StatePiece>& pieces);

// Returns RESOURCE_EXHAUSTED, naming `folder` and both numbers, if its file
// system has no room for `bytes`; OK if that is unknown.
absl::Status CheckRoom(const std::string& folder, int64_t bytes);

// Calls `attempt` up to four times, with pauses, while it fails with a
// transient error of the file system (ErrnoOf).
absl::Status WithRetries(const std::function<absl::Status()>& attempt);

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

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_SAVE_H_
