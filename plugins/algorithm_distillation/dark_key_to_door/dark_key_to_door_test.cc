// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/dark_key_to_door/dark_key_to_door.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/status.h"
#include "plugins/algorithm_distillation/play.h"

namespace capstan::dark_key_to_door {
namespace {

using darkroom::Cell;

std::unique_ptr<DarkKeyToDoor> Made(const Config& config = {}) {
  auto made = DarkKeyToDoor::Create(config);
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

// Walks to the cell, at least a step; returns the rewards on the way.
int Walk(Play* play, const Cell& to) {
  int total = 0;
  do {
    const uint8_t* const at = play->observation(0);
    uint8_t action = 4;
    if (at[1] != to.column) action = at[1] < to.column ? 2 : 3;
    if (at[0] != to.row) action = at[0] < to.row ? 0 : 1;
    int reward;
    play->Step(&action, &reward);
    total += reward;
  } while (play->observation(0)[0] != to.row ||
           play->observation(0)[1] != to.column);
  return total;
}

TEST(DarkKeyToDoorTest, IsThePapers) {
  const auto environment = Made();
  const EnvironmentSpec spec = environment->spec();
  EXPECT_EQ(spec.horizon, 50);
  EXPECT_EQ(spec.actions, 5);
  EXPECT_EQ(spec.most_reward, 1);
  EXPECT_EQ(environment->start(), (Cell{4, 4}));
  EXPECT_TRUE(CheckEnvironment(*environment).ok());
  EXPECT_EQ(environment->tasks(), 100);
  Config config;
  config.set_tasks(6561);
  const auto all = Made(config);
  std::set<std::string> names;
  for (int i = 0; i < all->tasks(); ++i) names.insert(all->TaskName(i));
  EXPECT_EQ(names.size(), 6561u);
  // Fewer are the first of more.
  EXPECT_EQ(environment->TaskName(99), all->TaskName(99));
}

TEST(DarkKeyToDoorTest, TheDoorOpensWithTheKeyAlone) {
  const auto environment = Made();
  for (int i = 0; i < environment->tasks(); ++i) {
    const KeyAndDoor& task = environment->task(i);
    Play play(*environment, {i});
    EXPECT_EQ(Walk(&play, task.key), 1);
    const int key = play.step();
    EXPECT_EQ(Walk(&play, task.door), 1);
    const int both = play.step();
    EXPECT_EQ(environment->OptimalReturn(i), 2.0);
    // Each is worth something once.
    EXPECT_EQ(Walk(&play, task.key), 0);
    play.Reset();
    EXPECT_EQ(play.step(), 0);
    if (task.key == task.door || task.door == environment->start()) continue;
    // Nothing, or both where the way to the door passes the key.
    const int first = Walk(&play, task.door);
    EXPECT_TRUE(first == 0 || first == 2) << environment->TaskName(i);

    Config config;
    config.set_horizon(both - 1);
    EXPECT_EQ(Made(config)->OptimalReturn(i), both - 1 >= key ? 1.0 : 0.0);
  }
}

TEST(DarkKeyToDoorTest, BadConfigNamesItsField) {
  Config config;
  config.set_grid_size(32);
  EXPECT_EQ(FieldOf(DarkKeyToDoor::Create(config).status()), "grid_size");
  config.set_grid_size(2);
  EXPECT_EQ(Made(config)->tasks(), 16);
  config.set_tasks(17);
  EXPECT_EQ(FieldOf(DarkKeyToDoor::Create(config).status()), "tasks");
  config.set_tasks(16);
  config.set_horizon(-1);
  EXPECT_EQ(FieldOf(DarkKeyToDoor::Create(config).status()), "horizon");
}

}  // namespace
}  // namespace capstan::dark_key_to_door
