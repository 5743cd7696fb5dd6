// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_OPTIMIZER_OPTIMIZER_STATE_H_
#define CAPSTAN_TRAINER_OPTIMIZER_OPTIMIZER_STATE_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"

namespace capstan {

// One tensor a state spec, for each shard.
using OptimizerState = std::vector<std::vector<at::Tensor>>;

// Whether the optimizer says of its state what can be, and takes the run.
// Before ranks are started.
absl::Status CheckOptimizer(const Optimizer& optimizer,
                            const OptimizerRequest& request);

// On each rank, after the strategy's Setup: whether the shards are cut as the
// optimizer needs them (a strategy may know nothing of that), its state, in
// MemoryCategory::kOptimizerState, and its own Setup.
absl::Status SetUpOptimizer(Optimizer& optimizer, const Model& model,
                            absl::Span<const OptimizerShard> shards,
                            OptimizerState* state);

// One Update. What it throws comes back with the step of the run and the
// plugin's name before it: "step 7: acme.lion: ..".
absl::Status UpdateShard(absl::string_view plugin, int64_t run_step,
                         Optimizer& optimizer, const OptimizerStep& step,
                         const Model& model, OptimizerShard& shard,
                         absl::Span<at::Tensor> state);

// Bytes of the state of `elements` elements, of which some are padding, that
// the model's trainable parameters make up with others' shards.
int64_t OptimizerStateBytes(const Optimizer& optimizer, const Model& model,
                            int64_t elements, c10::ScalarType master);

// Elements of a parameter's state, and of a shard's.
int64_t StateNumel(const OptimizerStateSpec& spec, int64_t parameter_numel);
int64_t StateLength(const OptimizerStateSpec& spec,
                    const OptimizerShard& shard);

// The state of elements [low, high) of a shard, which lie in `range`, its
// range number `index`: elements [begin, begin + length) of the parameter's
// state, at `offset` of the shard's tensor.
struct StatePart {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t offset = 0;
};
StatePart StatePartOf(const OptimizerStateSpec& spec,
                      const ParameterRange& range, int index, int64_t low,
                      int64_t high);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_OPTIMIZER_OPTIMIZER_STATE_H_
