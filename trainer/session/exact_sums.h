// SPDX-License-Identifier: Apache-2.0
//
// Sums over the ranks without rounding: in evaluations, and in steps of runs
// whose bits don't depend on how their work is divided (train.deterministic on
// CPUs). Gradients are summed elsewhere.
#ifndef CAPSTAN_TRAINER_SESSION_EXACT_SUMS_H_
#define CAPSTAN_TRAINER_SESSION_EXACT_SUMS_H_

#include <vector>

#include "absl/types/span.h"
#include "base/exact_sum.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"

namespace capstan {

// A step's sums over micro-batches and ranks.
struct ExactSums {
  ExactSum loss;
  ExactSum gradient_squared;
};

// Returns this rank's share of the squared norm of the summed gradient, over
// the slices that it owns (Strategy::OwnedSlices). Squares are added in double
// precision in blocks of 32 elements, counted from the parameter's first, and
// the blocks' sums without rounding. So the bits don't depend on where the
// parameter is divided, as long as slices begin at multiples of kFlatAlignment.
ExactSum GradientSquares(absl::Span<const OptimizerShard> shards,
                         const std::vector<OwnedSlice>& owned);

// All-reduces the sums in place and waits. Collective; throws
// CommunicationError.
void AllReduce(ProcessGroup& group, absl::Span<ExactSum> sums);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EXACT_SUMS_H_
