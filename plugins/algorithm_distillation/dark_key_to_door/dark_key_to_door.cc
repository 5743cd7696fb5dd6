// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/dark_key_to_door/dark_key_to_door.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/python_random.h"
#include "base/status.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/plugin.h"

namespace capstan::dark_key_to_door {
namespace {

using darkroom::Cell;
using darkroom::Room;

constexpr int kMostGrid = 31;  // a million pairs of cells

// An agent's goal is the door, which opens once it has the key.
class KeyEpisodes final : public darkroom::RoomEpisodes {
 public:
  KeyEpisodes(const Room& room, std::vector<darkroom::Task> rooms,
              std::vector<KeyAndDoor> tasks)
      : RoomEpisodes(room, std::move(rooms)),
        tasks_(std::move(tasks)),
        found_(tasks_.size()) {}

  void Reset(uint8_t* observations) override {
    std::fill(found_.begin(), found_.end(), 0);
    RoomEpisodes::Reset(observations);
  }

 private:
  int Reward(size_t i, const Cell& at) override {
    const Cell* const next[] = {&tasks_[i].key, &tasks_[i].door};
    if (found_[i] == 2 || !(at == *next[found_[i]])) return 0;
    ++found_[i];
    return 1;
  }

  const std::vector<KeyAndDoor> tasks_;
  std::vector<int> found_;  // 0 to 2 of key and door
};

// Steps from one cell to be in another: at least one.
int Steps(const Cell& from, const Cell& to) {
  return std::max(
      1, std::abs(from.row - to.row) + std::abs(from.column - to.column));
}

std::string Name(const Cell& cell) {
  return absl::StrCat("(", cell.row, ", ", cell.column, ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DarkKeyToDoor>> DarkKeyToDoor::Create(
    const Config& config) {
  const int size = config.grid_size() == 0 ? 9 : config.grid_size();
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(size >= 1 && size <= kMostGrid, "grid_size",
                 absl::StrCat("in [1, ", kMostGrid, "]"), size));
  const int horizon = config.horizon() == 0 ? 50 : config.horizon();
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(horizon >= 1, "horizon", "greater than 0", horizon));
  const int cells = size * size, pairs = cells * cells;
  const int count = config.tasks() == 0 ? std::min(100, pairs) : config.tasks();
  CAPSTAN_RETURN_IF_ERROR(CheckField(count >= 1 && count <= pairs, "tasks",
                                     absl::StrCat("in [1, ", pairs, "]"),
                                     count));
  std::vector<int> order(pairs);
  std::iota(order.begin(), order.end(), 0);
  PythonRandom(0).Shuffle(&order);
  const auto cell = [size](int index) {
    return Cell{static_cast<uint8_t>(index / size),
                static_cast<uint8_t>(index % size)};
  };
  std::vector<KeyAndDoor> tasks;
  for (int i = 0; i < count; ++i) {
    tasks.push_back({cell(order[i] / cells), cell(order[i] % cells)});
  }
  return std::unique_ptr<DarkKeyToDoor>(
      new DarkKeyToDoor({size, horizon}, std::move(tasks)));
}

Cell DarkKeyToDoor::start() const {
  const auto middle = static_cast<uint8_t>(room_.size / 2);
  return {middle, middle};
}

std::string DarkKeyToDoor::TaskName(int index) const {
  return absl::StrCat("key ", Name(task(index).key), ", door ",
                      Name(task(index).door));
}

double DarkKeyToDoor::OptimalReturn(int index) const {
  const int key = Steps(start(), task(index).key);
  const int door = key + Steps(task(index).key, task(index).door);
  return (key <= room_.horizon) + (door <= room_.horizon);
}

std::unique_ptr<Episodes> DarkKeyToDoor::NewEpisodes(
    const std::vector<int>& tasks) const {
  std::vector<KeyAndDoor> made;
  for (const int index : tasks) made.push_back(task(index));
  darkroom::Task room;
  room.start = start();
  return std::make_unique<KeyEpisodes>(
      room_, std::vector<darkroom::Task>(made.size(), room), std::move(made));
}

CAPSTAN_PLUGIN(Part, DarkKeyToDoor, ::capstan::dark_key_to_door::Config,
               "an environment: a dark room with a key and a door");

}  // namespace capstan::dark_key_to_door
