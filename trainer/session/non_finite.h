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

struct NonFiniteCause {
  std::string text;
  // The gradients aren't finite, but all losses are, so that it isn't known
  // which rank's micro-batch they came from.
  bool gradient_alone = false;
};

// Which tensor of which rank isn't finite: "the loss is nan on rank 1's
// micro-batch 1 of 2 (samples 5, 9 of train_data)", or else "the gradient of
// 'lm_head'
// ..". For after the reduced sums weren't finite; waits for the device.
// Collective; the same text on all ranks.
absl::StatusOr<NonFiniteCause> ExplainNonFinite(const NonFiniteStep& step,
                                                const DataOrder& order,
                                                Session* session);

// The samples of micro-batch `index` of rank `rank` in the step at `position`,
// and in words: "rank 1's micro-batch 1 of 2 (samples 5, 9 of train_data)".
struct MicroBatchPlace {
  int64_t position = 0;  // of its first sample in the run's sequence
  std::vector<int64_t> samples;
  std::string text;
};
MicroBatchPlace PlaceOf(const Session& session, const DataOrder& order,
                        int64_t position, int rank, int64_t index);

// The last parameter, whose gradient backward makes first, with a non-finite
// gradient in `owned`; -1: there is none.
int LastNonFiniteGradient(absl::Span<const OptimizerShard> shards,
                          const std::vector<OwnedSlice>& owned);

// The first parameter with a master in `owned` whose magnitude exceeds `most`;
// -1: there is none.
int FirstBeyond(absl::Span<const OptimizerShard> shards,
                const std::vector<OwnedSlice>& owned, double most);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_NON_FINITE_H_
