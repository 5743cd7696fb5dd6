// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_TRAIN_STATE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_TRAIN_STATE_H_

#include <cstdint>

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

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_TRAIN_STATE_H_
