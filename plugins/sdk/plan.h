// SPDX-License-Identifier: Apache-2.0
//
// What models and strategies predict about a run before it starts. Nothing here
// allocates memory proportional to the model's size.
#ifndef CAPSTAN_PLUGINS_SDK_PLAN_H_
#define CAPSTAN_PLUGINS_SDK_PLAN_H_

#include <cstdint>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/precision.h"

namespace capstan {

class Optimizer;

// The run that a strategy is asked to plan.
struct StrategyRequest {
  const Model* model = nullptr;
  PrecisionPolicy precision;
  int world_size = 1;
  int64_t accumulation = 1;  // micro-steps per step
  // Which parameters must stay whole, and the block sizes of its state (see
  // LayoutRules in strategies/common/flat_layout.h). Null: no constraints.
  const Optimizer* optimizer = nullptr;
  // Whether gradients are summed along a binary tree of the global batch's
  // micro-batches, whoever computes them.
  bool deterministic = false;
};

// What a strategy holds and sends, in bytes, on the rank that holds and sends
// the most.
struct StrategyPlan {
  // From Setup to the end of the run:
  int64_t parameters = 0;  // working copies, frozen ones included
  int64_t gradients = 0;
  int64_t masters = 0;  // those that aren't the working copies
  // The elements that the optimizer updates, padding included: the length of
  // its state tensors.
  int64_t optimizer_elements = 0;
  // Whether masters, gradients and optimizer state (parameters) are in host
  // memory although the run's device is a GPU.
  bool optimizer_on_host = false;
  bool parameters_on_host = false;

  // MemoryCategory::kBuckets during forward and backward of unit i, and while
  // parameters are published: gathered parameters, and collected gradients not
  // yet reduced.
  std::vector<int64_t> forward_buckets;   // one a unit
  std::vector<int64_t> backward_buckets;  // one a unit
  int64_t publish_buckets = 0;
  // Additional kBuckets while unit i's gradients are copied into buckets, after
  // its backward. One per unit.
  std::vector<int64_t> collect_buckets;
  // Gradients of unit i made by autograd, until the buckets take them over;
  // counts as MemoryCategory::kWorkspace. One per unit.
  std::vector<int64_t> backward_workspace;

  // Sent by the ring algorithms in a whole step (all micro-steps), by purpose.
  int64_t sent_for_gradients = 0;
  int64_t sent_for_parameters = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PLAN_H_
