// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_SHM_SHM_SUM_H_
#define CAPSTAN_CLUSTER_COMM_SHM_SHM_SUM_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace capstan {

// Sets out [size] to the elementwise sum of `count` >= 2 sources [size] along a
// binary tree: the sum of n sources is that of the first m, where m is the
// largest power of two below n, plus that of the others: ((x0 + x1) + (x2 +
// x3)) + x4. So trees over micro-batches and over ranks compose. Half floats
// are summed in float32 and rounded once. `out` may be one of the sources.
using SumFunction = void (*)(const void* const* sources, int count, void* out,
                             int64_t size);

// Returns nullptr unless `type` is a floating-point or integer type.
SumFunction SumOf(c10::ScalarType type);

// Computes the same sum, bit for bit, in parts that continue each other, for
// ranks of several hosts that add in turn.
struct PartialSum {
  // Bytes per element of an unfinished sum: those of float32 for half floats,
  // otherwise of the type itself.
  int width;
  // Adds `count` >= 1 sources [size] to the sum of `before` others, whose
  // complete subtrees are the SumParts(before) rows [size] at `parts`, `stride`
  // elements of `width` apart. Writes the finished sum to `out`, which may be
  // one of the sources, or if it is null, SumParts(before + count) rows to
  // `parts`.
  void (*add)(int64_t before, void* parts, int64_t stride,
              const void* const* sources, int count, void* out, int64_t size);
};

// Returns the functions for a type that SumOf knows.
PartialSum PartialSumOf(c10::ScalarType type);

// Returns the rows of an unfinished sum of `sources` sources: the number of
// ones in its binary form.
int SumParts(int64_t sources);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_SHM_SHM_SUM_H_
