// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

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

// Seeds MT19937 like Python: "init_by_array" (Matsumoto and Nishimura,
// mt19937ar.c) with the seed's 32-bit halves, low one first, without the high
// one if it is 0.
class PythonSeed {
 public:
  using result_type = uint32_t;

  explicit PythonSeed(uint64_t seed)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}

  // Called by std::mt19937 for its whole state.
  void generate(uint32_t* const words, uint32_t* const end) const {
    const auto count = static_cast<int>(end - words);
    const int key_length = key_[1] != 0 ? 2 : 1;
    const auto mixed = [words](int i, uint32_t factor) {
      return (words[i - 1] ^ (words[i - 1] >> 30)) * factor;
    };
    words[0] = 19650218;
    for (int i = 1; i < count; ++i) words[i] = mixed(i, 1812433253) + i;
    int i = 1;
    const auto advance = [&] {
      if (++i < count) return;
      words[0] = words[count - 1];
      i = 1;
    };
    for (int k = 0, j = 0; k < count; ++k, j = (j + 1) % key_length) {
      words[i] = (words[i] ^ mixed(i, 1664525)) + key_[j] + j;
      advance();
    }
    for (int k = 1; k < count; ++k) {
      words[i] = (words[i] ^ mixed(i, 1566083941)) - i;
      advance();
    }
    words[0] = 0x80000000;
  }

 private:
  const uint32_t key_[2];
};

std::mt19937 PythonEngine(uint64_t seed) {
  PythonSeed sequence(seed);
  return std::mt19937(sequence);
}

}  // namespace

PythonRandom::PythonRandom(uint64_t seed) : bits_(PythonEngine(seed)) {}

uint32_t PythonRandom::Below(uint32_t bound) {
  const int spare_bits = __builtin_clz(bound);
  uint32_t r;
  do {
    r = Bits() >> spare_bits;
  } while (r >= bound);
  return r;
}

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
