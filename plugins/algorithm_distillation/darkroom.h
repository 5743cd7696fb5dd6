// SPDX-License-Identifier: Apache-2.0
//
// Darkroom: a square room in which an agent, who only sees its own position,
// looks for a goal. An episode has a fixed length; every step that ends on the
// goal yields 1. (Laskin et al., "In-context Reinforcement Learning with
// Algorithm Distillation", ICLR 2023; details as in the published darkroom
// histories.)
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace capstan::darkroom {

// Row + 1, row - 1, column + 1, column - 1, stay.
constexpr int kActions = 5;

// The dimensions of all rooms of a set. `size` is in [1, 255].
struct Room {
  int size = 9;      // cells are (row, column), both in [0, size)
  int horizon = 20;  // steps of an episode
};

struct Cell {
  uint8_t row = 0;
  uint8_t column = 0;

  bool operator==(const Cell& other) const {
    return row == other.row && column == other.column;
  }
};

// An agent's task. Action a moves as kActions defines for meaning[a].
struct Task {
  Cell start;
  Cell goal;
  std::array<uint8_t, kActions> meaning = {0, 1, 2, 3, 4};
};

enum class Variant {
  kGoals,     // any goal, from the middle of the room
  kPermuted,  // from corner to corner; each task permutes the actions
};

// Goals: size * size, 81. Permuted: 5! = 120.
int TaskCount(Variant variant, const Room& room);

// Task `index` of [0, TaskCount): the goal (index / size, index % size), or the
// permutation `index` of the actions in lexicographic order with start (0, 0)
// and goal (size - 1, size - 1).
Task MakeTask(Variant variant, const Room& room, int index);

// The cell that the action leads to; walls block. `action` is in [0, kActions).
Cell Move(const Room& room, const Task& task, Cell from, int action);

// The greatest return of an episode: horizon + 1 - (distance of the goal), in
// [0, horizon].
int OptimalReturn(const Room& room, const Task& task);

// Several rooms, each with its task, stepped together.
class Darkroom {
 public:
  // Starts with the rooms reset.
  Darkroom(const Room& room, std::vector<Task> tasks);

  int64_t count() const { return static_cast<int64_t>(tasks_.size()); }
  const Room& room() const { return room_; }
  const Task& task(int64_t i) const { return tasks_[i]; }

  // The agents' positions, [count].
  const std::vector<Cell>& states() const { return states_; }
  // Steps of this episode so far, in [0, horizon].
  int step() const { return step_; }
  // Whether the episodes are over: all are `horizon` steps long.
  bool done() const { return step_ == room_.horizon; }

  // Moves each agent to its start.
  void Reset();
  // Takes one action, in [0, kActions), per room; rewards, [count], become 0 or
  // 1. Not when done().
  void Step(const uint8_t* actions, uint8_t* rewards);

 private:
  const Room room_;
  const std::vector<Task> tasks_;
  std::vector<Cell> states_;
  int step_ = 0;
};

// Python's `random` module, to reproduce splits made with it. Use base/random.h
// for anything else.
class PythonRandom {
 public:
  // random.seed(seed).
  explicit PythonRandom(uint64_t seed);

  // random.getrandbits(32).
  uint32_t Bits() { return static_cast<uint32_t>(bits_()); }
  // random.randrange(bound), bound > 0.
  uint32_t Below(uint32_t bound);

  // random.shuffle(items).
  template <typename T>
  void Shuffle(std::vector<T>* items) {
    for (std::size_t i = items->size(); i > 1; --i) {
      std::swap((*items)[i - 1], (*items)[Below(static_cast<uint32_t>(i))]);
    }
  }

 private:
  std::mt19937 bits_;
};

// The tasks for training and those held out.
struct Split {
  std::vector<int> train;
  std::vector<int> test;
};

// Splits as Python's random.seed(seed) and random.shuffle: the first
// round(train_fraction * tasks) of the shuffled tasks are `train`, the others
// `test`, in that order. 81 tasks at 0.9 and seed 0 give 73 and 8.
Split SplitTasks(int tasks, double train_fraction = 0.9, uint64_t seed = 0);

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_H_
