// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_TRAIN_STATE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_TRAIN_STATE_H_

#include <cstdint>

namespace capstan {

// Progress of a run, identical on all ranks.
struct TrainState {
  int64_t step = 0;             // including skipped ones
  int64_t optimizer_steps = 0;  // updates
  int64_t samples = 0;          // consumed: the data position
  // As in LossSum. In checkpoints of older versions, tokens may include
  // padding, and the other two count only from the upgrade on.
  int64_t tokens = 0;
  int64_t trained_tokens = 0;  // -1: begun by an older version
  int64_t padding = 0;
  // Determines which samples the data position refers to.
  uint64_t seed = 0;
  int64_t data_size = 0;  // samples in the training data
  bool data_shuffle = false;
  int64_t data_group = 0;  // group size for sorting by length; 0: unsorted
  int64_t global_batch_size = 0;  // 0: unknown
  // FrozenChecksum of the frozen parameters; 0: there are none.
  uint32_t frozen_crc32c = 0;
  // Evaluations so far: the last one's step, the lowest loss and its step (-1:
  // none), and the number since.
  int64_t eval_step = -1;
  double best_eval_loss = 0.0;
  int64_t best_step = -1;
  int64_t evals_without_better = 0;
  double loss_scale = 1.0;
  int64_t loss_scale_good_steps = 0;
  double last_loss = 0.0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_TRAIN_STATE_H_
