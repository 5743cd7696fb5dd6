// SPDX-License-Identifier: Apache-2.0
//
// What the ranks add up apart from gradients, without rounding: in evaluations,
// and in steps of runs whose bits don't depend on how their work is divided
// (train.deterministic on CPUs).
#ifndef CAPSTAN_TRAINER_SESSION_EXACT_SUMS_H_
#define CAPSTAN_TRAINER_SESSION_EXACT_SUMS_H_

#include <vector>

#include "absl/types/span.h"
#include "base/exact_sum.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"

namespace capstan {

// Of a step, over micro-batches and ranks.
struct ExactSums {
  ExactSum loss;
  ExactSum gradient_squared;
};

// This rank's share of the squared norm of the summed gradient: of what it owns
// (Strategy::OwnedSlices). The squares of 32 elements, counted from the
// parameter's first, are added in double precision, these sums without
// rounding: the same bits however the parameter is cut between them, as all
// slices at multiples of kFlatAlignment are.
ExactSum GradientSquares(absl::Span<const OptimizerShard> shards,
                         const std::vector<OwnedSlice>& owned);

// All-reduces them in place and waits. Collective; throws CommunicationError.
void AllReduce(ProcessGroup& group, absl::Span<ExactSum> sums);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_EXACT_SUMS_H_
