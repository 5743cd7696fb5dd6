// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_FINITE_H_
#define CAPSTAN_TRAINER_CHECKPOINT_FINITE_H_

#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint.h"

namespace capstan {

// A checkpoint tensor with a NaN or an infinity or, in a master, a number whose
// square overflows float32: no model computes with such weights.
struct NonFiniteTensor {
  int parameter = 0;  // index into CheckpointParts::specs
  int kind = 0;       // index into AllKinds: 0 is the master
};

// The first, by parameter and kind, in what this rank saves. One pass over the
// data; on a GPU it waits for the device.
absl::optional<NonFiniteTensor> FindNonFinite(const CheckpointParts& parts);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_FINITE_H_
