// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_ACTIVATION_CHECKPOINTING_H_
#define CAPSTAN_TRAINER_MEMORY_ACTIVATION_CHECKPOINTING_H_

#include <cstdint>

namespace capstan {

// Which units recompute their activations in backward (Chen et al., "Training
// Deep Nets with Sublinear Memory Cost", 2016).
struct ActivationCheckpointing {
  // Every n-th unit (number divisible by n); 0: none.
  int64_t every = 0;
  // Units of the model; the last is never recomputed, as its backward starts at
  // once.
  int units = 0;
  // The first unit with a trainable parameter; those before it have no
  // backward.
  int first_trainable = 0;

  // Whether `unit` is recomputed, provided its input is floating-point (token
  // ids are an embedding's input, which keeps nothing).
  bool Covers(int unit) const {
    return every > 0 && unit % every == 0 && unit >= first_trainable &&
           unit + 1 < units;
  }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_ACTIVATION_CHECKPOINTING_H_
