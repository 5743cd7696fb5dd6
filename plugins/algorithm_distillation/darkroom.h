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
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/algorithm_distillation/environment.h"

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

// What all environments of such rooms have: observations are rows and columns.
EnvironmentSpec SpecOf(const Room& room);

// An agent in each task's room.
class RoomEpisodes : public Episodes {
 public:
  RoomEpisodes(const Room& room, std::vector<Task> tasks)
      : room_(room), tasks_(std::move(tasks)), at_(tasks_.size()) {}

  void Reset(uint8_t* observations) override;
  void Step(const uint8_t* actions, uint8_t* observations,
            int* rewards) override;

 protected:
  // Of a step of agent i that ended at `at`.
  virtual int Reward(size_t i, const Cell& at) { return at == tasks_[i].goal; }

 private:
  void Show(uint8_t* observations) const;

  const Room room_;
  const std::vector<Task> tasks_;
  std::vector<Cell> at_;
};

// A set of such rooms as an environment.
class Darkroom final : public Environment {
 public:
  Darkroom(Variant variant, const Room& room)
      : variant_(variant), room_(room) {}

  Variant variant() const { return variant_; }
  const Room& room() const { return room_; }
  Task task(int index) const { return MakeTask(variant_, room_, index); }

  EnvironmentSpec spec() const override { return SpecOf(room_); }
  int tasks() const override { return TaskCount(variant_, room_); }
  std::string TaskName(int task) const override;
  double OptimalReturn(int task) const override;
  std::unique_ptr<Episodes> NewEpisodes(
      const std::vector<int>& tasks) const override;

 private:
  const Variant variant_;
  const Room room_;
};

// The tasks for training and those held out.
struct Split {
  std::vector<int> train;
  std::vector<int> test;
};

// Splits as Python's random.seed(0) and random.shuffle: the first
// round(train_fraction * tasks) of the shuffled tasks are `train`, the others
// `test`, in that order. 81 tasks at 0.9 give 73 and 8.
Split SplitTasks(int tasks, double train_fraction = 0.9);

// The environment's own split, else SplitTasks'.
Split SplitOf(const Environment& environment);

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_H_
