// SPDX-License-Identifier: Apache-2.0
#include "strategies/fsdp/schedule.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

namespace capstan::fsdp {
namespace {

// From the first position that needs a group to the last before it is freed.
struct Interval {
  int first = 0;
  int last = 0;
};

std::vector<int> Positions(const GroupSpec& group, const Schedule& schedule,
                           bool backward, int lowest_trainable) {
  std::vector<int> positions;
  for (int unit : group.forward_units) {
    positions.push_back(schedule.Forward(unit));
  }
  if (!backward) return positions;
  // From the last unit down; units before the first trainable parameter have no
  // backward.
  for (auto unit = group.backward_units.rbegin();
       unit != group.backward_units.rend(); ++unit) {
    if (*unit >= lowest_trainable) {
      positions.push_back(schedule.Backward(*unit));
    }
  }
  return positions;
}

std::vector<Interval> Intervals(const std::vector<int>& positions,
                                const Schedule& schedule,
                                const ScheduleOptions& options) {
  std::vector<Interval> intervals;
  for (int p : positions) {
    if (!intervals.empty()) {
      Interval& current = intervals.back();
      // A group used by several units stays between them, and so does one that
      // would be gathered right after being freed.
      const bool same_direction =
          (current.last < schedule.units) == (p < schedule.units);
      const bool soon = p - options.prefetch <= current.last + 1;
      if (same_direction || soon || !options.reshard_after_forward) {
        current.last = p;
        continue;
      }
    }
    intervals.push_back({p, p});
  }
  return intervals;
}

}  // namespace

std::vector<GroupSpec> MakeGroups(const Model& model,
                                  const LayoutRules& rules) {
  const std::vector<ParameterSpec>& specs = model.parameters();
  std::vector<GroupSpec> groups;
  const auto add = [&](int unit, bool trainable, bool whole) {
    GroupSpec group;
    group.unit = unit;
    group.trainable = trainable;
    group.whole = whole;
    std::set<int> forward, backward;
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      if (specs[i].unit != unit || specs[i].trainable != trainable ||
          rules.Whole(i) != whole) {
        continue;
      }
      group.parameters.push_back(i);
      forward.insert(unit);
      if (specs[i].read_in_backward) backward.insert(unit);
      for (int other : specs[i].other_units) {
        forward.insert(other);
        backward.insert(other);
      }
    }
    if (group.parameters.empty()) return;
    group.forward_units.assign(forward.begin(), forward.end());
    group.backward_units.assign(backward.begin(), backward.end());
    groups.push_back(std::move(group));
  };
  for (int unit = 0; unit < static_cast<int>(model.units().size()); ++unit) {
    add(unit, /*trainable=*/true, /*whole=*/false);
    add(unit, /*trainable=*/true, /*whole=*/true);
    add(unit, /*trainable=*/false, /*whole=*/false);
  }
  return groups;
}

std::vector<FlatLayout> LayOutGroups(const std::vector<ParameterSpec>& specs,
                                     const std::vector<GroupSpec>& groups,
                                     const LayoutRules& rules, int shards) {
  std::vector<FlatLayout> layouts;
  std::vector<int64_t> loads(shards, 0);
  for (const GroupSpec& group : groups) {
    if (group.whole) {
      layouts.push_back(
          LayOutWhole(specs, group.parameters, rules.multiple, &loads));
      continue;
    }
    layouts.push_back(LayOut(specs, group.parameters, rules.multiple));
    std::vector<Bucket> all = {{0, layouts.back().numel, group.parameters}};
    PadBuckets(shards, &layouts.back(), &all, rules.multiple);
  }
  return layouts;
}

Schedule MakeSchedule(const std::vector<GroupSpec>& groups, int units,
                      const ScheduleOptions& options) {
  Schedule schedule;
  schedule.units = units;
  schedule.needs.resize(schedule.end() + 1);
  int lowest_trainable = units;
  for (const GroupSpec& group : groups) {
    if (group.trainable) {
      lowest_trainable = std::min(lowest_trainable, group.unit);
    }
  }
  for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
    const std::vector<int> positions =
        Positions(groups[g], schedule, options.backward, lowest_trainable);
    for (int p : positions) schedule.needs[p].push_back(g);
    for (const Interval& interval : Intervals(positions, schedule, options)) {
      schedule.operations.push_back(
          {std::max(0, interval.first - options.prefetch), Operation::kGather,
           g});
      schedule.operations.push_back({interval.last + 1, Operation::kFree, g});
    }
    if (options.backward && groups[g].trainable) {
      const int position = schedule.Backward(groups[g].unit) + 1;
      schedule.operations.push_back({position, Operation::kReserve, g});
      schedule.operations.push_back({position, Operation::kReduce, g});
    }
  }
  // At one position by kind, and first what is needed soonest.
  const auto key = [&](const Operation& operation) {
    const bool descending = operation.position >= units;
    return std::make_tuple(operation.position, operation.kind,
                           descending ? -operation.group : operation.group);
  };
  std::stable_sort(
      schedule.operations.begin(), schedule.operations.end(),
      [&](const Operation& a, const Operation& b) { return key(a) < key(b); });
  return schedule;
}

}  // namespace capstan::fsdp
