// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace capstan {

// out [size] = sources[0] [size] + sources[1] [size] + .. elementwise in this
// order; half floats are summed in float32 and rounded once. At least two
// sources; `out` may be one of them.
using SumFunction = void (*)(const void* const* sources, int count, void* out,
                             int64_t size);

// nullptr for types other than floating-point and integer.
SumFunction SumOf(c10::ScalarType type);

// The same sum in parts, of which each continues the one before, as where ranks
// of several hosts add in turn: bit for bit what SumOf gives.
struct PartialSum {
  // Bytes of an element of a sum that isn't finished: float32 for half floats,
  // else the type itself.
  int width;
  // out [size] = before [size] + sources[0] [size] + .. in this order, at least
  // one source. `before` (null if there is none) is an unfinished sum, as is
  // `out` unless `finish`; `out` may be `before`, or, if finished, one of the
  // sources.
  void (*add)(const void* before, const void* const* sources, int count,
              bool finish, void* out, int64_t size);
};

// For types that SumOf knows.
PartialSum PartialSumOf(c10::ScalarType type);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_
