// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_NON_FINITE_H_
#define CAPSTAN_TRAINER_SESSION_NON_FINITE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/strategy.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/session.h"

namespace capstan {

// The step to look at, of this rank.
struct NonFiniteStep {
  // The losses of its micro-batches, scalars on any device.
  const std::vector<at::Tensor>* losses = nullptr;
  int64_t position = 0;  // of its first sample in the run's sequence
  // The strategy's gradients are already those of the step after it.
  bool late = false;
};

// Which tensor of which rank isn't finite: "the loss of rank 1's micro-batch 0
// of 2 is nan (samples 5, 9 of train_data)", or else "the gradient of 'lm_head'
// ..". For after the reduced sums weren't finite; waits for the device.
// Collective; the same text on all ranks.
absl::StatusOr<std::string> ExplainNonFinite(const NonFiniteStep& step,
                                             const DataOrder& order,
                                             Session* session);

// The last parameter, whose gradient backward makes first, with a non-finite
// gradient in `owned`; -1: there is none.
int LastNonFiniteGradient(absl::Span<const OptimizerShard> shards,
                          const std::vector<OwnedSlice>& owned);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_NON_FINITE_H_
