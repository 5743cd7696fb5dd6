// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/python_random.h"

namespace capstan::darkroom {
namespace {

int Factorial(int n) { return n <= 1 ? 1 : n * Factorial(n - 1); }

// Permutation `index` of the actions in lexicographic order.
std::array<uint8_t, kActions> Permutation(int index) {
  std::vector<uint8_t> left(kActions);
  std::iota(left.begin(), left.end(), 0);
  std::array<uint8_t, kActions> permutation;
  for (int i = 0; i < kActions; ++i) {
    const int each = Factorial(kActions - 1 - i);
    permutation[i] = left[index / each];
    left.erase(left.begin() + index / each);
    index %= each;
  }
  return permutation;
}

}  // namespace

int TaskCount(Variant variant, const Room& room) {
  return variant == Variant::kGoals ? room.size * room.size
                                    : Factorial(kActions);
}

Task MakeTask(Variant variant, const Room& room, int index) {
  const auto cell = [](int row, int column) {
    return Cell{static_cast<uint8_t>(row), static_cast<uint8_t>(column)};
  };
  Task task;
  if (variant == Variant::kGoals) {
    task.start = cell(room.size / 2, room.size / 2);
    task.goal = cell(index / room.size, index % room.size);
  } else {
    task.goal = cell(room.size - 1, room.size - 1);
    task.meaning = Permutation(index);
  }
  return task;
}

Cell Move(const Room& room, const Task& task, Cell from, int action) {
  // By meaning: rows and columns gone.
  constexpr int kMoves[kActions][2] = {{1, 0}, {-1, 0}, {0, 1}, {0, -1}, {}};
  const auto& [rows, columns] = kMoves[task.meaning[action]];
  const auto within = [&](int place) {
    return static_cast<uint8_t>(std::clamp(place, 0, room.size - 1));
  };
  return {within(from.row + rows), within(from.column + columns)};
}

int OptimalReturn(const Room& room, const Task& task) {
  const int distance = std::abs(task.goal.row - task.start.row) +
                       std::abs(task.goal.column - task.start.column);
  return std::clamp(room.horizon + 1 - distance, 0, room.horizon);
}

EnvironmentSpec SpecOf(const Room& room) {
  EnvironmentSpec spec;
  spec.actions = kActions;
  spec.horizon = room.horizon;
  spec.numbers = 2;
  spec.bounds[0] = spec.bounds[1] = room.size;
  return spec;
}

void RoomEpisodes::Reset(uint8_t* observations) {
  for (size_t i = 0; i < tasks_.size(); ++i) at_[i] = tasks_[i].start;
  Show(observations);
}

void RoomEpisodes::Step(const uint8_t* actions, uint8_t* observations,
                        int* rewards) {
  for (size_t i = 0; i < tasks_.size(); ++i) {
    at_[i] = Move(room_, tasks_[i], at_[i], actions[i]);
    rewards[i] = Reward(i, at_[i]);
  }
  Show(observations);
}

void RoomEpisodes::Show(uint8_t* observations) const {
  for (const Cell& cell : at_) {
    *observations++ = cell.row;
    *observations++ = cell.column;
  }
}

std::string Darkroom::TaskName(int index) const {
  const Task t = task(index);
  return variant_ == Variant::kGoals
             ? absl::StrCat("goal (", t.goal.row, ", ", t.goal.column, ")")
             : absl::StrCat("actions ", absl::StrJoin(t.meaning, " "));
}

double Darkroom::OptimalReturn(int index) const {
  return darkroom::OptimalReturn(room_, task(index));
}

std::unique_ptr<Episodes> Darkroom::NewEpisodes(
    const std::vector<int>& tasks) const {
  std::vector<Task> made;
  for (const int index : tasks) made.push_back(task(index));
  return std::make_unique<RoomEpisodes>(room_, std::move(made));
}

Split SplitTasks(int tasks, double train_fraction) {
  std::vector<int> order(tasks);
  std::iota(order.begin(), order.end(), 0);
  PythonRandom(0).Shuffle(&order);
  // Python's round: halves to even.
  const auto train = order.begin() + std::lrint(train_fraction * tasks);
  return {{order.begin(), train}, {train, order.end()}};
}

Split SplitOf(const Environment& environment) {
  Split split;
  split.test = environment.HeldOutTasks();
  if (split.test.empty()) return SplitTasks(environment.tasks());
  for (int task = 0; task < environment.tasks(); ++task) {
    if (std::find(split.test.begin(), split.test.end(), task) ==
        split.test.end()) {
      split.train.push_back(task);
    }
  }
  return split;
}

}  // namespace capstan::darkroom
