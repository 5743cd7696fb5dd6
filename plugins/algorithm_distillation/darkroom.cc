// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "plugins/algorithm_distillation/python_random.h"

namespace capstan {
namespace darkroom {
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
  switch (task.meaning[action]) {
    case 0:
      from.row += from.row + 1 < room.size;
      break;
    case 1:
      from.row -= from.row > 0;
      break;
    case 2:
      from.column += from.column + 1 < room.size;
      break;
    case 3:
      from.column -= from.column > 0;
      break;
    default:
      break;
  }
  return from;
}

int OptimalReturn(const Room& room, const Task& task) {
  const int distance = std::abs(task.goal.row - task.start.row) +
                       std::abs(task.goal.column - task.start.column);
  return std::clamp(room.horizon + 1 - distance, 0, room.horizon);
}

Darkroom::Darkroom(const Room& room, std::vector<Task> tasks)
    : room_(room), tasks_(std::move(tasks)), states_(tasks_.size()) {
  Reset();
}

void Darkroom::Reset() {
  step_ = 0;
  for (size_t i = 0; i < tasks_.size(); ++i) states_[i] = tasks_[i].start;
}

void Darkroom::Step(const uint8_t* actions, uint8_t* rewards) {
  ++step_;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    states_[i] = Move(room_, tasks_[i], states_[i], actions[i]);
    rewards[i] = states_[i] == tasks_[i].goal;
  }
}

Split SplitTasks(int tasks, double train_fraction, uint64_t seed) {
  std::vector<int> order(tasks);
  std::iota(order.begin(), order.end(), 0);
  PythonRandom(seed).Shuffle(&order);
  // Python's round: halves to even.
  const auto train = order.begin() + std::lrint(train_fraction * tasks);
  return {{order.begin(), train}, {train, order.end()}};
}

}  // namespace darkroom
}  // namespace capstan
