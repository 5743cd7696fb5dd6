// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints know tensors, not ranks: each rank writes the slices it owns into
// its own safetensors file, and the manifest maps elements of parameters to
// files. Any number of ranks under any strategy can load them.
//
//   OUTPUT/checkpoints/step-00000100/
//     manifest.json                   written last
//     state-00000-of-00002.safetensors
//     tokenizer.json, ..              if the data has a tokenizer
//
// Each rank reads and writes only its own ranges, straight from and to its
// tensors, with a few MiB of buffers and no gathering. Frozen parameters aren't
// saved: they have the model's initial values.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_H_
#define CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {

// Progress of a run, identical on all ranks.
struct TrainState {
  int64_t step = 0;             // including skipped ones
  int64_t optimizer_steps = 0;  // updates
  int64_t samples = 0;          // consumed: the data position
  // As in LossSum.
  int64_t tokens = 0;
  int64_t trained_tokens = 0;
  int64_t padding = 0;
  // Determines which samples the data position refers to.
  uint64_t seed = 0;
  int64_t data_size = 0;  // samples in the training data
  bool data_shuffle = false;
  int64_t data_group = 0;  // group size for sorting by length; 0: unsorted
  int64_t global_batch_size = 0;
  // FrozenChecksum of the frozen parameters; 0: there are none.
  uint32_t frozen_crc32c = 0;
  // TrainedChecksum, once a rollout has computed with the initial weights.
  uint32_t initial_crc32c = 0;
  // Evaluations so far: the last one's step, the metric that they are compared
  // by ("": eval_loss), its best value and that one's step (-1: none), and the
  // number since.
  int64_t eval_step = -1;
  std::string best_metric;
  double best_eval_loss = 0.0;
  int64_t best_step = -1;
  int64_t evals_without_better = 0;
  double loss_scale = 1.0;
  int64_t loss_scale_good_steps = 0;
  double last_loss = 0.0;
  double first_loss = 0.0;  // of the first step; 0: that had none
  // The window of train.loss_spikes, oldest first, and the spikes since its
  // last loss.
  std::vector<double> recent_losses;
  int64_t spikes_in_a_row = 0;
  // How often it went back to the checkpoint of which step (GO_BACK; -1: none).
  int64_t back_to = -1;
  int64_t times_back = 0;
  // Samples of train_data and eval_data that the run has passed over
  // (train.skip_bad_samples), ascending.
  std::vector<int64_t> bad_samples;
  std::vector<int64_t> bad_eval_samples;
};

// Identifies a run by what it reads and assumes: values by name, for users and
// for comparison (trainer/session/run_identity.h).
using RunIdentity = std::map<std::string, std::string>;

// What a plugin keeps beside tensors (Objective::SaveState, Model::SaveState).
struct PluginState {
  std::string kind;      // as in files (manifest.h)
  std::string plugin;    // its package; what another one has saved isn't loaded
  bool of_rank = false;  // each rank saves its own, else rank 0 for all
  std::function<std::string()> save;  // "": nothing
  // Called after a load with what was saved ("": nothing), and the file that
  // has it. Another load may follow, of an older checkpoint.
  std::function<void(std::string bytes, const std::string& file)> load;
};

// The state saved in and restored from a checkpoint.
struct CheckpointParts {
  const std::vector<ParameterSpec>* specs = nullptr;
  absl::Span<OptimizerShard> shards;
  // state[shard][k] is of the kind state_shapes[k].
  std::vector<std::vector<at::Tensor>>* state = nullptr;
  std::vector<StateShape> state_shapes;
  std::vector<OwnedSlice> owned;  // slices that this rank writes
  ProcessGroup* group = nullptr;
  std::string config_text;  // the run's whole config, stored in the manifest
  RunIdentity identity;     // likewise
  // If set, its own state is saved and restored, too.
  Strategy* strategy = nullptr;
  std::vector<PluginState> plugins;
};

struct SaveRequest;  // save.h

// Saves into OUTPUT_DIR/checkpoints/step-NNNNNNNN. Collective. Writes to a
// hidden sibling and renames it, manifest last, so that a kill at any moment
// leaves the previous checkpoint intact. All ranks return the same outcome: if
// one can't write (its error names rank and file), all return an error, and
// this step's files are removed. Afterwards removes old checkpoints.
absl::Status SaveCheckpoint(const SaveRequest& request,
                            const CheckpointParts& parts);

// Loads masters, working copies and state from the checkpoint in `folder` (a
// step-NNNNNNNN folder), whatever strategy, world size and shard layout wrote
// it. Collective: if one rank fails, all return an error; its own names file
// and tensor and says what to do, the others' are UNAVAILABLE.
//
// Model, optimizer, manifest, and file lengths and headers are checked before
// anything is written. Checksums are verified while reading, so that files are
// read once: after a checksum error the tensors are partly overwritten, also
// with wrong values, and mustn't be used.
absl::StatusOr<TrainState> LoadCheckpoint(const std::string& folder,
                                          const CheckpointParts& parts);

// The checkpoint that a run continues from.
struct Resumed {
  std::string folder;  // "": there is no checkpoint, and nothing was loaded
  TrainState state;
  // How many replicas there were (Strategy::local_steps); 0: none.
  int replicas = 0;
  // Newer checkpoints that can't be read; rank 0's: their steps, and "PATH: is
  // damaged: HOW".
  std::vector<std::pair<int64_t, std::string>> damaged;
};

// Loads the newest whole checkpoint in OUTPUT_DIR/checkpoints, as rank 0 sees
// it. If a rank finds it damaged, all load the one before, and so on; if there
// is none before, the error is the newest one's, as LoadCheckpoint's.
// Collective.
absl::StatusOr<Resumed> LoadNewestCheckpoint(const std::string& output_dir,
                                             const CheckpointParts& parts);

// Like LoadCheckpoint, but loads only masters, working copies, and the states
// of plugins that aren't each rank's own.
absl::Status LoadCheckpointWeights(const std::string& folder,
                                   const CheckpointParts& parts);

// Returns a CRC-32C over samples of each frozen parameter's initial values, to
// check that a run is resumed on the model it began with; 0 if none is frozen.
absl::StatusOr<uint32_t> FrozenChecksum(const Model& model, uint64_t seed);
// The same of the trained parameters.
absl::StatusOr<uint32_t> TrainedChecksum(const Model& model, uint64_t seed);

// Returns the newest complete checkpoint in OUTPUT_DIR/checkpoints, or "".
std::string NewestCheckpoint(const std::string& output_dir);

// Returns whether `folder` is a checkpoint.
bool IsCheckpoint(const std::string& folder);
// Return what a checkpoint says of its run.
absl::StatusOr<TrainState> CheckpointState(const std::string& folder);
absl::StatusOr<std::string> CheckpointConfig(const std::string& folder);
absl::StatusOr<RunIdentity> CheckpointIdentity(const std::string& folder);
using InitialValues =
    std::function<absl::Status(int index, uint64_t seed, float* out)>;
// Returns a checkpoint's master weights, for `generate`. `initial` writes a
// frozen parameter's whole value as the run's seed determines it; without it,
// frozen parameters are an error.
absl::StatusOr<std::vector<at::Tensor>> CheckpointWeights(
    const std::string& folder, const std::vector<ParameterSpec>& specs,
    const InitialValues& initial = nullptr);

// OUTPUT_DIR/checkpoints/step-NNNNNNNN.
std::string CheckpointFolder(const std::string& output_dir, int64_t step);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_H_
