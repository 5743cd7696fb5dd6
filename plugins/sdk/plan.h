// SPDX-License-Identifier: Apache-2.0
//
// What models and strategies say of a run before it starts. Nothing here
// allocates anything of the model's size.
#ifndef CAPSTAN_PLUGINS_SDK_PLAN_H_
#define CAPSTAN_PLUGINS_SDK_PLAN_H_

#include <cstdint>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/precision.h"

namespace capstan {

class Optimizer;

// What a strategy is asked to carry.
struct StrategyRequest {
  const Model* model = nullptr;
  PrecisionPolicy precision;
  int world_size = 1;
  int64_t accumulation = 1;  // micro-steps a step
  // Since minor version 2. Which parameters it needs whole, and in which blocks
  // its state comes (strategies/common/flat_layout.h has LayoutRules). Null:
  // neither.
  const Optimizer* optimizer = nullptr;
};

// What a strategy holds and sends, on the rank that holds and sends most; in
// bytes.
struct StrategyPlan {
  // From Setup to the end:
  int64_t parameters = 0;  // working copies, frozen ones included
  int64_t gradients = 0;
  int64_t masters = 0;  // those that aren't the working copies
  // What the optimizer updates, padding included: the length of its state
  // tensors.
  int64_t optimizer_elements = 0;
  // Whether masters, gradients and optimizer state, and whether parameters,
  // lie in host memory although the run's device is a GPU.
  bool optimizer_on_host = false;
  bool parameters_on_host = false;

  // MemoryCategory::kBuckets while unit i is in forward and in backward, and
  // while parameters are published: gathered parameters, gradients that were
  // collected and not yet reduced.
  std::vector<int64_t> forward_buckets;   // one a unit
  std::vector<int64_t> backward_buckets;  // one a unit
  int64_t publish_buckets = 0;
  // More of them, once the kernels of unit i's backward are done, while its
  // gradients are put into buckets. One a unit.
  std::vector<int64_t> collect_buckets;
  // Gradients of unit i that autograd has made, while the buckets take them
  // over: MemoryCategory::kWorkspace. One a unit.
  std::vector<int64_t> backward_workspace;

  // Sent by the ring algorithms in a whole step (all micro-steps), split by
  // what it is for.
  int64_t sent_for_gradients = 0;
  int64_t sent_for_parameters = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PLAN_H_
