// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "plugins/algorithm_distillation/play.h"

namespace capstan::darkroom {
namespace {

using testing::ElementsAre;

constexpr Room kRoom;

TEST(SplitTest, IsTheOriginals) {
  const Split split = SplitTasks(81);
  EXPECT_THAT(split.test, ElementsAre(38, 51, 62, 65, 33, 5, 53, 49));
  ASSERT_EQ(split.train.size(), 73);
  EXPECT_EQ(split.train[0], 24);
  EXPECT_EQ(split.train[72], 61);
  std::vector<int> all = split.train;
  all.insert(all.end(), split.test.begin(), split.test.end());
  std::sort(all.begin(), all.end());
  std::vector<int> numbers(81);
  std::iota(numbers.begin(), numbers.end(), 0);
  EXPECT_EQ(all, numbers);
}

TEST(SplitTest, RoundsAsPython) {
  EXPECT_EQ(SplitTasks(5, 0.5).train.size(), 2);  // 2.5
  EXPECT_EQ(SplitTasks(7, 0.5).train.size(), 4);  // 3.5
  EXPECT_EQ(SplitTasks(120).train.size(), 108);
}

TEST(TaskTest, GoalsAreInRows) {
  ASSERT_EQ(TaskCount(Variant::kGoals, kRoom), 81);
  const Task task = MakeTask(Variant::kGoals, kRoom, 51);
  EXPECT_EQ(task.goal, (Cell{5, 6}));
  EXPECT_EQ(task.start, (Cell{4, 4}));
  EXPECT_EQ(MakeTask(Variant::kGoals, {5, 20}, 23).goal, (Cell{4, 3}));
}

TEST(TaskTest, PermutationsAreInLexicographicOrder) {
  ASSERT_EQ(TaskCount(Variant::kPermuted, kRoom), 120);
  std::array<uint8_t, kActions> meaning = {0, 1, 2, 3, 4};
  for (int i = 0; i < 120; ++i) {
    const Task task = MakeTask(Variant::kPermuted, kRoom, i);
    EXPECT_EQ(task.meaning, meaning) << i;
    EXPECT_EQ(task.start, (Cell{0, 0}));
    EXPECT_EQ(task.goal, (Cell{8, 8}));
    std::next_permutation(meaning.begin(), meaning.end());
  }
}

TEST(MoveTest, GoesOneCellAndNotThroughWalls) {
  const Task task = MakeTask(Variant::kGoals, kRoom, 0);
  EXPECT_EQ(Move(kRoom, task, {4, 4}, 0), (Cell{5, 4}));
  EXPECT_EQ(Move(kRoom, task, {4, 4}, 1), (Cell{3, 4}));
  EXPECT_EQ(Move(kRoom, task, {4, 4}, 2), (Cell{4, 5}));
  EXPECT_EQ(Move(kRoom, task, {4, 4}, 3), (Cell{4, 3}));
  EXPECT_EQ(Move(kRoom, task, {4, 4}, 4), (Cell{4, 4}));
  EXPECT_EQ(Move(kRoom, task, {8, 8}, 0), (Cell{8, 8}));
  EXPECT_EQ(Move(kRoom, task, {0, 8}, 1), (Cell{0, 8}));
  EXPECT_EQ(Move(kRoom, task, {8, 8}, 2), (Cell{8, 8}));
  EXPECT_EQ(Move(kRoom, task, {8, 0}, 3), (Cell{8, 0}));
}

TEST(MoveTest, TakesActionsAsTheTaskMeansThem) {
  // The second permutation: 0 1 2 4 3.
  const Task task = MakeTask(Variant::kPermuted, kRoom, 1);
  EXPECT_EQ(Move(kRoom, task, {4, 4}, 3), (Cell{4, 4}));
  EXPECT_EQ(Move(kRoom, task, {4, 4}, 4), (Cell{4, 3}));
}

// Walks straight to the goal and stays there.
int ReturnOfTheStraightWay(const Darkroom& rooms, int index) {
  const Task task = rooms.task(index);
  Play play(rooms, {index});
  int total = 0;
  while (!play.done()) {
    const Cell at = {play.observation(0)[0], play.observation(0)[1]};
    int wanted = 4;
    if (at.column != task.goal.column) {
      wanted = at.column < task.goal.column ? 2 : 3;
    }
    if (at.row != task.goal.row) wanted = at.row < task.goal.row ? 0 : 1;
    const uint8_t action = static_cast<uint8_t>(
        std::find(task.meaning.begin(), task.meaning.end(), wanted) -
        task.meaning.begin());
    int reward;
    play.Step(&action, &reward);
    total += reward;
  }
  return total;
}

TEST(OptimalReturnTest, IsThatOfTheStraightWay) {
  for (const Variant variant : {Variant::kGoals, Variant::kPermuted}) {
    const Darkroom rooms(variant, kRoom);
    for (int i = 0; i < rooms.tasks(); ++i) {
      EXPECT_EQ(rooms.OptimalReturn(i), ReturnOfTheStraightWay(rooms, i)) << i;
    }
  }
  EXPECT_EQ(OptimalReturn(kRoom, MakeTask(Variant::kGoals, kRoom, 40)), 20);
  EXPECT_EQ(OptimalReturn(kRoom, MakeTask(Variant::kGoals, kRoom, 0)), 13);
  EXPECT_EQ(OptimalReturn({9, 5}, MakeTask(Variant::kGoals, {9, 5}, 0)), 0);
}

TEST(DarkroomTest, StepsEachRoomByItself) {
  const Darkroom rooms(Variant::kGoals, kRoom);
  Play play(rooms, {5 * 9 + 4, 3 * 9 + 4});
  const uint8_t down[] = {0, 0}, apart[] = {4, 1};
  int rewards[2];
  play.Step(down, rewards);
  EXPECT_THAT(rewards, ElementsAre(1, 0));
  EXPECT_THAT(play.observations(), ElementsAre(5, 4, 5, 4));
  play.Step(apart, rewards);
  EXPECT_THAT(rewards, ElementsAre(1, 0));
  play.Step(apart, rewards);
  EXPECT_THAT(rewards, ElementsAre(1, 1));
  EXPECT_EQ(play.step(), 3);
}

TEST(DarkroomTest, IsDoneAfterTheHorizon) {
  const Darkroom rooms(Variant::kGoals, kRoom);
  Play play(rooms, {40});
  const uint8_t stay = 4;
  int reward;
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(play.done());
    play.Step(&stay, &reward);
    EXPECT_EQ(reward, 1);
  }
  EXPECT_TRUE(play.done());
  play.Reset();
  EXPECT_FALSE(play.done());
  EXPECT_THAT(play.observations(), ElementsAre(4, 4));
}

// An environment that says of itself what a test wants.
class Claim final : public Environment {
 public:
  Claim() { said = Darkroom(Variant::kGoals, kRoom).spec(); }
  EnvironmentSpec spec() const override { return said; }
  int tasks() const override { return count; }
  std::string TaskName(int) const override { return ""; }
  double OptimalReturn(int) const override { return 0; }
  std::unique_ptr<Episodes> NewEpisodes(
      const std::vector<int>&) const override {
    return nullptr;
  }
  std::vector<int> HeldOutTasks() const override { return held_out; }

  EnvironmentSpec said;
  int count = 4;
  std::vector<int> held_out;
};

TEST(EnvironmentTest, MayHoldOutTasksOfItsChoice) {
  Claim claim;
  EXPECT_EQ(SplitOf(claim).test, SplitTasks(4).test);
  claim.held_out = {2, 0};
  EXPECT_TRUE(CheckEnvironment(claim).ok());
  EXPECT_THAT(SplitOf(claim).test, ElementsAre(2, 0));
  EXPECT_THAT(SplitOf(claim).train, ElementsAre(1, 3));
}

TEST(EnvironmentTest, WhatCanNotBeIsSaid) {
  const auto refused = [](const std::string& words, const auto& change) {
    Claim claim;
    EXPECT_TRUE(CheckEnvironment(claim).ok());
    change(&claim);
    EXPECT_THAT(std::string(CheckEnvironment(claim).message()),
                testing::HasSubstr(words));
  };
  refused("256 actions", [](Claim* c) { c->said.actions = 256; });
  refused("0 steps in an episode", [](Claim* c) { c->said.horizon = 0; });
  refused("9 numbers in an", [](Claim* c) { c->said.numbers = 9; });
  refused("0 values of a number", [](Claim* c) { c->said.bounds[1] = 0; });
  refused("from -200 to 100", [](Claim* c) {
    c->said.least_reward = -200;
    c->said.most_reward = 100;
  });
  refused("0 tasks", [](Claim* c) { c->count = 0; });
  refused("holds out", [](Claim* c) { c->held_out = {1, 4}; });
  refused("holds out", [](Claim* c) { c->held_out = {1, 1}; });
}

}  // namespace
}  // namespace capstan::darkroom
