// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_MEMORY_ACTIVATION_CHECKPOINTING_H_
#define CAPSTAN_TRAINER_MEMORY_ACTIVATION_CHECKPOINTING_H_

#include <cstdint>

namespace capstan {

// Which units drop what their forward computed and compute it again in backward
// (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016).
struct ActivationCheckpointing {
  // Every n-th unit: those whose number is a multiple of it; 0: none.
  int64_t every = 0;
  // Of the model; the last is never recomputed, as its backward begins at once.
  int units = 0;
  // The first with a trainable parameter: those before it have no backward.
  int first_trainable = 0;

  // Whether unit `unit` is recomputed, where its input is floating-point: token
  // ids lead to an embedding, which keeps nothing.
  bool Covers(int unit) const {
    return every > 0 && unit % every == 0 && unit >= first_trainable &&
           unit + 1 < units;
  }
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_MEMORY_ACTIVATION_CHECKPOINTING_H_
