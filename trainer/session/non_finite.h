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

// This rank's step to examine.
struct NonFiniteStep {
  // The losses of its micro-batches, scalars on any device.
  const std::vector<at::Tensor>* losses = nullptr;
  int64_t position = 0;  // of its first sample in the run's sequence
  // Whether the strategy's gradients are already those of the next step.
  bool late = false;
};

struct NonFiniteCause {
  std::string text;
  // Whether gradients aren't finite although all losses are, so that it is
  // unknown which rank's micro-batch they came from.
  bool gradient_alone = false;
};

// Finds which tensor of which rank isn't finite: "the loss is nan on rank 1's
// micro-batch 1 of 2 (samples 5, 9 of train_data)", or else "the gradient of
// 'lm_head' ..". Called after the reduced sums weren't finite; waits for the
// device. Collective; returns the same text on all ranks.
absl::StatusOr<NonFiniteCause> ExplainNonFinite(const NonFiniteStep& step,
                                                const DataOrder& order,
                                                Session* session);

// The samples of micro-batch `index` of rank `rank` in the step at `position`,
// and their description: "rank 1's micro-batch 1 of 2 (samples 5, 9 of
// train_data)".
struct MicroBatchPlace {
  int64_t position = 0;  // of its first sample in the run's sequence
  std::vector<int64_t> samples;
  std::string text;
};
MicroBatchPlace PlaceOf(const Session& session, const DataOrder& order,
                        int64_t position, int rank, int64_t index);

// Returns the last parameter with a non-finite gradient in `owned`, which is
// the one that backward computes first; -1 if there is none.
int LastNonFiniteGradient(absl::Span<const OptimizerShard> shards,
                          const std::vector<OwnedSlice>& owned);

// Returns the first parameter with a master in `owned` whose magnitude exceeds
// `most`; -1 if there is none.
int FirstBeyond(absl::Span<const OptimizerShard> shards,
                const std::vector<OwnedSlice>& owned, double most);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_NON_FINITE_H_
