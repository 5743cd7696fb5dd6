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

// state[shard][k] is the tensor of spec k.
using OptimizerState = std::vector<std::vector<at::Tensor>>;

// A kind of state as it applies to a model's parameters.
struct StateShape {
  OptimizerStateSpec spec;
  // Optimizer::StateNumel by parameter; empty: all are as `spec` says.
  std::vector<int64_t> numels;

  bool as_specified(int parameter) const {
    return numels.empty() || numels[parameter] < 0;
  }
  // Whether each range's state is the same wherever a part of the parameter is.
  bool per_parameter(int parameter) const {
    return spec.per_parameter > 0 || !as_specified(parameter);
  }
};

// One per state_specs(); a frozen parameter's length counts for nothing.
std::vector<StateShape> StateShapesOf(const Optimizer& optimizer,
                                      const std::vector<ParameterSpec>& specs);

// Checks that the optimizer's state specs are valid and that it accepts the
// run. Call before ranks are started.
absl::Status CheckOptimizer(const Optimizer& optimizer,
                            const OptimizerRequest& request);

// Where the state is kept.
struct StateHome {
  // In page-locked host memory where the shard is on a GPU, else in a file
  // (paged_state.h).
  bool paged = false;
  std::string folder;  // for that file
};

// Call on each rank after the strategy's Setup. Checks that the shards are cut
// as the optimizer requires (a strategy may ignore that), allocates its state
// in MemoryCategory::kOptimizerState, and calls its Setup.
absl::Status SetUpOptimizer(Optimizer& optimizer, const Model& model,
                            absl::Span<const OptimizerShard> shards,
                            OptimizerState* state, const StateHome& home = {});

// One Update; in pieces, if the state isn't where the shard is. Exceptions
// become errors prefixed with the run's step and the plugin's name: "step 7:
// acme.lion: ..".
absl::Status UpdateShard(absl::string_view plugin, int64_t run_step,
                         Optimizer& optimizer, const OptimizerStep& step,
                         const Model& model, OptimizerShard& shard,
                         absl::Span<at::Tensor> state);

// Bytes of state for `elements` elements, padding included, of shards that
// together hold the model's trainable parameters.
int64_t OptimizerStateBytes(const Optimizer& optimizer, const Model& model,
                            int64_t elements, c10::ScalarType master);

// Number of state elements of a whole parameter, and of a shard.
int64_t StateNumel(const StateShape& shape, int parameter,
                   int64_t parameter_numel);
int64_t StateLength(const StateShape& shape, const OptimizerShard& shard);

// State of elements [low, high) of a shard, all in ranges[index]: elements
// [begin, begin + length) of the parameter's state, at `offset` in the shard's
// tensor.
struct StatePart {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t offset = 0;
};
StatePart StatePartOf(const StateShape& shape,
                      absl::Span<const ParameterRange> ranges, int index,
                      int64_t low, int64_t high);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_OPTIMIZER_OPTIMIZER_STATE_H_
