// SPDX-License-Identifier: Apache-2.0
//
// When each group of parameters is gathered, freed and reduced in a pass over
// the model, computed once. All ranks issue the same collectives in the same
// order whatever happens on one of them: a rank whose forward throws still
// issues the rest of the schedule.
#ifndef CAPSTAN_STRATEGIES_FSDP_SCHEDULE_H_
#define CAPSTAN_STRATEGIES_FSDP_SCHEDULE_H_

#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/plan.h"
#include "strategies/common/flat_layout.h"

namespace capstan::fsdp {

// Parameters that are sharded, gathered and freed together: of one unit, the
// trainable ones that may be cut, those that may not, or the frozen ones.
struct GroupSpec {
  int unit = 0;
  bool trainable = true;
  std::vector<int> parameters;  // indices into the model's
  // Units whose forward (backward) reads it, ascending.
  std::vector<int> forward_units;
  std::vector<int> backward_units;
  bool whole = false;  // parameters that must not be cut
};

// In the order of units.
std::vector<GroupSpec> MakeGroups(const Model& model,
                                  const LayoutRules& rules = LayoutRules());

// Lays out each group's parameters so that `shards` ranks share them equally.
std::vector<FlatLayout> LayOutGroups(const std::vector<ParameterSpec>& specs,
                                     const std::vector<GroupSpec>& groups,
                                     const LayoutRules& rules, int shards);

// What is issued in a pass. In a pass, unit u's forward is at position u, its
// backward at 2 * units - 1 - u.
struct Operation {
  // At one position in this order. Memory is freed before more is taken:
  // kReserve completes the oldest reductions. Gathers come before reductions,
  // since computation waits for the next unit's parameters, but not for sums.
  enum Kind { kFree, kReserve, kGather, kReduce };
  int position = 0;  // where in the pass it is issued
  Kind kind = kFree;
  int group = 0;
};

struct Schedule {
  int units = 0;
  std::vector<Operation> operations;  // in the order of issue
  // The groups required at each position.
  std::vector<std::vector<int>> needs;

  int Forward(int unit) const { return unit; }
  int Backward(int unit) const { return 2 * units - 1 - unit; }
  int end() const { return 2 * units; }
};

struct ScheduleOptions {
  bool backward = true;  // a training pass; else forward only
  bool reshard_after_forward = true;
  int prefetch = 1;
};

Schedule MakeSchedule(const std::vector<GroupSpec>& groups, int units,
                      const ScheduleOptions& options);

struct PlanOptions {
  bool reduce_once = false;  // gradients are reduced after the last micro-step
  bool offload = false;      // shards are in host memory
};

// What a run of training passes `pass` over `shards` shards holds and sends.
StrategyPlan PlanRun(const StrategyRequest& request, int shards,
                     const ScheduleOptions& pass, const PlanOptions& options);

}  // namespace capstan::fsdp

#endif  // CAPSTAN_STRATEGIES_FSDP_SCHEDULE_H_
