// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace capstan {

// out [size] = the elementwise sum of `count` >= 2 sources [size] along a
// binary tree: of n, the sum of the first m, where m is the largest power of
// two below n, plus the sum of the others: ((x0 + x1) + (x2 + x3)) + x4. So a
// tree over ranks goes on in one over what each has summed. Half floats are
// summed in float32 and rounded once. `out` may be one of the sources.
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
  // Adds `count` >= 1 sources [size] to the sum of `before` others, whose
  // complete subtrees are the SumParts(before) rows [size] at `parts`, `stride`
  // elements of `width` apart. Writes the finished sum to `out`, which may be
  // one of the sources, or if it is null, SumParts(before + count) rows to
  // `parts`.
  void (*add)(int64_t before, void* parts, int64_t stride,
              const void* const* sources, int count, void* out, int64_t size);
};

// For types that SumOf knows.
PartialSum PartialSumOf(c10::ScalarType type);

// The rows of an unfinished sum of so many sources: the ones in binary.
int SumParts(int64_t sources);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_
