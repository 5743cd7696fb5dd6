// SPDX-License-Identifier: Apache-2.0
//
// What is predicted of a run, without allocating memory of the model's size.
#ifndef CAPSTAN_PLUGINS_SDK_PLAN_H_
#define CAPSTAN_PLUGINS_SDK_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/precision.h"

namespace capstan {

class Optimizer;

// How a loss curve may differ from that of capstan.single.
struct OwnCurve {
  double loss = 0.0;  // the most of |loss - single's| / single's at any step
  std::string why;    // a clause: "ranks synchronise every 100 steps"
};

struct StrategyRequest {
  const Model* model = nullptr;
  PrecisionPolicy precision;
  int world_size = 1;
  int64_t accumulation = 1;  // micro-steps per step
  // Says what stays whole and has the blocks of its state (LayoutRules in
  // strategies/common/flat_layout.h). Null: no constraints.
  const Optimizer* optimizer = nullptr;
  // Whether gradients are added without rounding (kernels/context/
  // gradient_grid.h), so that their order doesn't matter.
  bool deterministic = false;
};

// In bytes, on the rank that holds and sends the most.
struct StrategyPlan {
  // From Setup to the end of the run:
  int64_t parameters = 0;  // working copies, frozen ones included
  int64_t gradients = 0;
  int64_t masters = 0;             // those that aren't the working copies
  int64_t optimizer_elements = 0;  // updated, with padding: its state's length
  // In host memory, although the run's device is a GPU:
  bool optimizer_on_host = false;   // masters, gradients, state
  bool parameters_on_host = false;  // working copies

  // MemoryCategory::kBuckets in forward and backward of a unit, and while
  // publishing: gathered parameters, and gradients not yet reduced.
  std::vector<int64_t> forward_buckets;   // one a unit
  std::vector<int64_t> backward_buckets;  // one a unit
  int64_t publish_buckets = 0;
  // More kBuckets while gradients are copied there after backward, one a unit.
  std::vector<int64_t> collect_buckets;
  // kWorkspace: autograd's gradients until buckets take them over, one a unit.
  std::vector<int64_t> backward_workspace;

  // Sent by the ring algorithms in a step (all micro-steps), by purpose.
  int64_t sent_for_gradients = 0;
  int64_t sent_for_parameters = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PLAN_H_
