// SPDX-License-Identifier: Apache-2.0
//
// What a run will hold and send, by walking the schedule without a model.
#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "strategies/common/flat_layout.h"
#include "strategies/common/gradient_buckets.h"
#include "strategies/common/grid_sums.h"
#include "strategies/common/reduce_queue.h"
#include "strategies/fsdp/schedule.h"

namespace capstan::fsdp {
namespace {

struct PlannedGroup {
  int64_t whole = 0;   // bytes of the gathered parameters
  int64_t filled = 0;  // bytes of the gradients' bucket
  int64_t sums = 0;    // of its sums, which ranks send
  int64_t slice = 0;   // of this rank's slice, if in a separate buffer
  bool gathered = false;
};

// Walks a training pass and records what is held at each position.
class Walk {
 public:
  Walk(const Schedule& schedule, std::vector<PlannedGroup> groups,
       int64_t shards, int64_t replicas, bool offload)
      : schedule_(schedule),
        groups_(std::move(groups)),
        shards_(shards),
        replicas_(replicas),
        offload_(offload) {}

  void Run() {
    size_t next = 0;
    for (int position = 0; position <= schedule_.end(); ++position) {
      for (; next < schedule_.operations.size() &&
             schedule_.operations[next].position <= position;
           ++next) {
        Issue(schedule_.operations[next]);
      }
      held_.push_back(Held());
    }
  }

  // Bytes in buckets at a position, except those that its gradients fill.
  int64_t held(int position) const { return held_[position]; }
  // Bytes still being reduced when the next micro-step begins.
  int64_t left() const { return held_.back(); }
  int64_t sent_for_parameters() const { return sent_for_parameters_; }
  // In one micro-step, and between replicas in the last one.
  int64_t sent_for_gradients() const { return sent_for_gradients_; }
  int64_t sent_to_replicas() const { return sent_to_replicas_; }

 private:
  struct Reduction {
    int64_t sums = 0;
    int64_t slice = 0;
  };

  void Issue(const Operation& operation) {
    PlannedGroup& group = groups_[operation.group];
    switch (operation.kind) {
      case Operation::kFree:
        group.gathered = false;
        break;
      case Operation::kReserve:
        ++reserved_;
        while (!reducing_.empty() &&
               static_cast<int>(reducing_.size()) + reserved_ >
                   kReducesUnderWay) {
          FinishOldest();
        }
        break;
      case Operation::kGather:
        group.gathered = true;
        sent_for_parameters_ += group.whole / shards_ * (shards_ - 1);
        break;
      case Operation::kReduce:
        --reserved_;
        reducing_.push_back({group.sums, group.slice});
        sent_for_gradients_ += group.sums / shards_ * (shards_ - 1);
        sent_to_replicas_ +=
            2 * group.sums / shards_ * (replicas_ - 1) / replicas_;
        break;
    }
  }

  // Its slice is copied to host memory until the next one is.
  void FinishOldest() {
    if (offload_) copying_ = reducing_.front().slice;
    reducing_.pop_front();
  }

  int64_t Held() const {
    int64_t held = 0;
    for (const PlannedGroup& group : groups_) {
      if (group.gathered) held += group.whole;
    }
    for (const Reduction& one : reducing_) held += one.sums + one.slice;
    return held + copying_;
  }

  const Schedule& schedule_;
  std::vector<PlannedGroup> groups_;
  const int64_t shards_;
  const int64_t replicas_;
  const bool offload_;
  std::deque<Reduction> reducing_;
  int reserved_ = 0;
  int64_t copying_ = 0;
  std::vector<int64_t> held_;
  int64_t sent_for_parameters_ = 0;
  int64_t sent_for_gradients_ = 0;
  int64_t sent_to_replicas_ = 0;
};

}  // namespace

StrategyPlan PlanRun(const StrategyRequest& request, int shards,
                     const ScheduleOptions& pass, const PlanOptions& options) {
  const Model& model = *request.model;
  const std::vector<ParameterSpec> specs =
      StoredSpecs(model, request.precision.compute);
  const int64_t compute = c10::elementSize(request.precision.compute);
  const int64_t reduce = c10::elementSize(request.precision.reduce);
  const bool mixed = request.precision.compute != request.precision.master;
  const int64_t shard_count = shards;
  const bool many = request.accumulation > 1;
  const int64_t sum = request.deterministic ? kGridSumBytes : reduce;
  const LayoutRules rules = RulesOf(model, request.optimizer);
  const std::vector<GroupSpec> group_specs = MakeGroups(model, rules);
  const std::vector<FlatLayout> layouts =
      LayOutGroups(specs, group_specs, rules, shards);

  StrategyPlan plan;
  std::vector<PlannedGroup> groups;
  int64_t kept_sums = 0;
  for (size_t g = 0; g < group_specs.size(); ++g) {
    const int64_t mine = layouts[g].numel / shard_count;
    PlannedGroup planned;
    planned.whole = layouts[g].numel * compute;
    plan.parameters += mine * compute;
    if (group_specs[g].trainable) {
      plan.optimizer_elements += mine;
      planned.filled = layouts[g].numel * reduce;
      planned.sums = layouts[g].numel * sum;
      const bool apart = (many && !options.reduce_once) || options.offload;
      if (apart) planned.slice = mine * sum;
      kept_sums += planned.sums;
    }
    groups.push_back(planned);
  }
  plan.gradients = plan.optimizer_elements * reduce;
  if (request.deterministic) plan.gradients += plan.optimizer_elements * sum;
  if (mixed) {
    plan.masters =
        plan.optimizer_elements * c10::elementSize(request.precision.master);
  }
  plan.optimizer_on_host = plan.parameters_on_host = options.offload;

  const int units = static_cast<int>(model.units().size());
  const Schedule schedule = MakeSchedule(group_specs, units, pass);
  Walk walk(schedule, groups, shard_count, request.world_size / shard_count,
            options.offload);
  walk.Run();
  const int64_t kept = options.reduce_once && many ? kept_sums : 0;
  const int64_t left = !options.reduce_once && many ? walk.left() : 0;
  for (int unit = 0; unit < units; ++unit) {
    plan.forward_buckets.push_back(walk.held(schedule.Forward(unit)) + kept +
                                   (unit + 1 < units ? left : 0));
    plan.backward_buckets.push_back(walk.held(schedule.Backward(unit)) + kept);
  }
  // Backward has ended, but not the last reductions.
  plan.publish_buckets = walk.left() + kept;
  plan.collect_buckets.assign(units, 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    if (kept > 0 && !request.deterministic) continue;
    plan.collect_buckets[group_specs[g].unit] += groups[g].filled;
  }
  plan.backward_workspace = LargestGradients(model, request.precision.compute);
  const int64_t passes = pass.reshard_after_forward ? request.accumulation : 1;
  plan.sent_for_parameters = walk.sent_for_parameters() * passes;
  plan.sent_for_gradients =
      walk.sent_for_gradients() *
          (options.reduce_once ? 1 : request.accumulation) +
      walk.sent_to_replicas();
  return plan;
}

}  // namespace capstan::fsdp
