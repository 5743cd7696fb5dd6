// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints know tensors, not ranks: each rank writes the slices it owns
// into its own safetensors file, and the manifest says which elements of which
// parameter lie where. Any number of ranks under any strategy reads them back.
//
//   OUTPUT/checkpoints/step-00000100/
//     manifest.json                   written last
//     state-00000-of-00002.safetensors
//
// A rank writes and reads its own ranges only, from and to its own tensors:
// nothing is gathered, and beside them it takes a few MiB. Frozen parameters
// aren't saved: they have the model's initial values.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_H_
#define CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/checkpoint/train_state.h"

namespace capstan {

// What a checkpoint is made from and restored into.
struct CheckpointParts {
  const std::vector<ParameterSpec>* specs = nullptr;
  absl::Span<OptimizerShard> shards;
  // state[shard][k] belongs to state_names[k].
  std::vector<std::vector<at::Tensor>>* state = nullptr;
  std::vector<std::string> state_names;
  std::vector<OwnedSlice> owned;  // what this rank writes
  ProcessGroup* group = nullptr;
  std::string config_text;  // the run's whole config, kept in the manifest
};

// Saves into OUTPUT_DIR/checkpoints/step-NNNNNNNN. Collective. Written beside
// and renamed, manifest last: a kill at any moment leaves the previous
// checkpoint whole. All ranks get the same verdict: if one can't write (its
// error names rank and file), all return an error, and what was written for
// this step is removed. Then removes all but the newest `keep` checkpoints and
// that of step `best_step`, if it isn't negative.
absl::Status SaveCheckpoint(const std::string& output_dir, int keep,
                            const TrainState& train_state,
                            const CheckpointParts& parts,
                            int64_t best_step = -1);

// Fills parts' masters, working copies and state from the checkpoint in
// `folder` (one step-NNNNNNNN folder), whatever strategy, world size and shard
// layout wrote it. Collective: if one rank can't, all return an error; its own
// names file and tensor and says what to do, the others' are UNAVAILABLE.
//
// Model, optimizer, the manifest, and the files' lengths and headers are
// checked before anything is written. The values' checksums are checked as
// they are read, so that the files are read once: no wrong value is written,
// but if a checksum is wrong the tensors hold a part of the checkpoint and
// mustn't be used.
absl::StatusOr<TrainState> LoadCheckpoint(const std::string& folder,
                                          const CheckpointParts& parts);

// Fills parts' masters and working copies, and nothing else, from the
// checkpoint; otherwise as LoadCheckpoint.
absl::Status LoadCheckpointWeights(const std::string& folder,
                                   const CheckpointParts& parts);

// A CRC-32C of some of each frozen parameter's initial values: whether a run is
// resumed on the model that it began with. 0 if none is frozen.
absl::StatusOr<uint32_t> FrozenChecksum(const Model& model, uint64_t seed);

// The newest complete checkpoint in OUTPUT_DIR/checkpoints, or "" if none.
std::string NewestCheckpoint(const std::string& output_dir);

// Whether `folder` is a checkpoint, its run's numbers and config, and, for
// `generate`, its master
// weights as a function to fill a model with. `initial` writes the whole value
// of a frozen parameter, as the run's seed has it; without it they are an
// error.
bool IsCheckpoint(const std::string& folder);
absl::StatusOr<TrainState> CheckpointState(const std::string& folder);
absl::StatusOr<std::string> CheckpointConfig(const std::string& folder);
using InitialValues =
    std::function<absl::Status(int index, uint64_t seed, float* out)>;
absl::StatusOr<std::vector<at::Tensor>> CheckpointWeights(
    const std::string& folder, const std::vector<ParameterSpec>& specs,
    const InitialValues& initial = nullptr);

// OUTPUT_DIR/checkpoints/step-NNNNNNNN.
std::string CheckpointFolder(const std::string& output_dir, int64_t step);

// Removes all but the newest `keep` checkpoints (all stay if it is 0 or less),
// never those of `saved_step` and `best_step`, and what killed runs have left
// half-done. What can't be removed is logged and stays.
void RemoveOldCheckpoints(const std::string& output_dir, int keep,
                          int64_t saved_step, int64_t best_step);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_H_
