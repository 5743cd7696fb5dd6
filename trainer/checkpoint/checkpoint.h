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

namespace capstan {

// The numbers of a run that are the same on all ranks.
struct TrainState {
  int64_t step = 0;             // steps done, skipped ones included
  int64_t optimizer_steps = 0;  // updates done
  int64_t samples = 0;          // samples consumed: the data position
  // As LossSum has them. Older checkpoints' tokens may hold padding, and the
  // other two begin with what came after.
  int64_t tokens = 0;
  int64_t trained_tokens = 0;  // -1: an older trainer began the run
  int64_t padding = 0;
  // What makes the data position mean the same samples again.
  uint64_t seed = 0;
  int64_t data_size = 0;  // samples in the training data
  bool data_shuffle = false;
  int64_t data_group = 0;         // samples that are sorted by length; 0: not
  int64_t global_batch_size = 0;  // samples of a step; 0: not known
  // Of the frozen parameters (FrozenChecksum); 0: there are none.
  uint32_t frozen_crc32c = 0;
  // Evaluations so far: the last one's step, the lowest loss and its step (-1:
  // none), and how many there have been since.
  int64_t eval_step = -1;
  double best_eval_loss = 0.0;
  int64_t best_step = -1;
  int64_t evals_without_better = 0;
  double loss_scale = 1.0;
  int64_t loss_scale_good_steps = 0;
  double last_loss = 0.0;
};

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
  // Of state_names, in detail; empty: all are as the masters.
  std::vector<OptimizerStateSpec> state_specs;
  // If set, its own state is saved and restored as well.
  Strategy* strategy = nullptr;
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

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_H_
