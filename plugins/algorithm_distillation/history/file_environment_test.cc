// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/history/file_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/random_history_testing.h"

namespace capstan::ad_history {
namespace {

using darkroom::Darkroom;
using darkroom::History;
using darkroom::HistoryOrigin;
using darkroom::HistoryReader;
using darkroom::HistoryWriter;
using darkroom::Variant;
using ::testing::HasSubstr;

constexpr int64_t kSteps = 2000, kStreams = 2;

class FileEnvironmentTest : public ::testing::Test {
 protected:
  FileEnvironmentTest()
      : path_(::testing::TempDir() + "/" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() +
              ".hdf5") {}

  // Three tasks, after `change`; they say what they are, if `says`.
  void Write(
      const Darkroom& rooms, bool says,
      const std::function<void(History*)>& change = [](History*) {}) {
    auto writer = HistoryWriter::Create(path_);
    ASSERT_TRUE(writer.ok()) << writer.status();
    if (says) {
      HistoryOrigin origin;
      origin.environment = "darkroom";
      origin.permuted = rooms.variant() == Variant::kPermuted;
      origin.grid = rooms.room().size;
      origin.horizon = rooms.room().horizon;
      ASSERT_TRUE((*writer)->Describe(origin).ok());
    }
    for (int task = 0; task < 3; ++task) {
      History history = darkroom::RandomHistory(rooms, task, kSteps, kStreams);
      change(&history);
      ASSERT_TRUE((*writer)->Write(task, history).ok());
    }
    ASSERT_TRUE((*writer)->Commit().ok());
  }

  absl::StatusOr<std::shared_ptr<const Environment>> Find() {
    const auto file = HistoryReader::Open(path_);
    EXPECT_TRUE(file.ok()) << file.status();
    auto found = FindEnvironment(**file, config_);
    if (!found.ok()) return found;
    for (const int task : (*file)->tasks()) {
      const auto history = (*file)->Read(task, (*found)->spec());
      if (!history.ok()) return history.status();
      const absl::Status status = CheckHistory(**found, path_, task, *history);
      if (!status.ok()) return status;
    }
    return found;
  }

  // That the file is found to be of such rooms.
  void ExpectFound(const Darkroom& rooms) {
    const auto found = Find();
    ASSERT_TRUE(found.ok()) << found.status();
    const auto* const darkroom = dynamic_cast<const Darkroom*>(found->get());
    ASSERT_NE(darkroom, nullptr);
    EXPECT_EQ(darkroom->variant(), rooms.variant());
    EXPECT_EQ(darkroom->room().size, rooms.room().size);
    EXPECT_EQ(darkroom->room().horizon, rooms.room().horizon);
  }

  void ExpectRefused(const std::string& words, const std::string& field = "") {
    const absl::Status status = Find().status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    if (!field.empty()) {
      EXPECT_EQ(FieldOf(status), field);
    }
  }

  const std::string path_;
  Config config_;
};

// A history of 30 steps was played on 20, a file of 13 x
// 13 cells couldn't be read, permutations were read as goals.
TEST_F(FileEnvironmentTest, AFileIsWhatItSays) {
  for (const bool says : {true, false}) {
    for (const Darkroom& rooms :
         {Darkroom(Variant::kGoals, {9, 20}),
          Darkroom(Variant::kGoals, {9, 30}),
          Darkroom(Variant::kGoals, {13, 20}),
          Darkroom(Variant::kGoals, {4, 7}), Darkroom(Variant::kGoals, {5, 7}),
          Darkroom(Variant::kPermuted, {4, 12}),
          Darkroom(Variant::kPermuted, {5, 20})}) {
      SCOPED_TRACE(::testing::Message()
                   << says << " " << rooms.TaskName(0) << " "
                   << rooms.room().size << " " << rooms.room().horizon);
      Write(rooms, says);
      ExpectFound(rooms);
    }
  }
}

TEST_F(FileEnvironmentTest, TheConfigMayNotSayAnotherThing) {
  for (const bool says : {true, false}) {
    Write(Darkroom(Variant::kPermuted, {5, 20}), says);
    config_.set_tasks(Config::PERMUTED);
    ExpectFound(Darkroom(Variant::kPermuted, {5, 20}));
    config_.set_tasks(Config::GOALS);
    ExpectRefused("is GOALS, but " + path_ + " has histories of PERMUTED",
                  "tasks");
    Write(Darkroom(Variant::kGoals, {5, 20}), says);
    ExpectFound(Darkroom(Variant::kGoals, {5, 20}));
    config_.set_tasks(Config::PERMUTED);
    ExpectRefused("has histories of GOALS", "tasks");
  }
}

// What a file says doesn't help: its histories can't have happened.
TEST_F(FileEnvironmentTest, WhatContradictsTheRulesIsSaid) {
  const Darkroom rooms(Variant::kGoals, {5, 20});
  const auto refused = [&](const std::string& words, const auto& change) {
    for (const bool says : {true, false}) {
      Write(rooms, says, change);
      ExpectRefused(words);
    }
  };
  // Of step 3 of stream 1.
  const int64_t i = 3 * kStreams + 1;
  refused(
      "0/rewards has 1 at [3, 1], but in this environment (goal (0, 0), "
      "episodes of 20 steps) it is 0",
      [&](History* h) { h->rewards[i] = 1; });
  refused("0/states has (4, 4) at [3, 1]",
          [&](History* h) { h->states[2 * i] = h->states[2 * i + 1] = 4; });
  refused("0/next_states has (4, 4) at [3, 1]", [&](History* h) {
    h->next_states[2 * i] = h->next_states[2 * i + 1] = 4;
  });
  refused("0/dones has true at [3, 1]", [&](History* h) { h->dones[i] = 1; });
  refused("0/dones has false at [39, 0]",
          [&](History* h) { h->dones[39 * kStreams] = 0; });
}

// Wherever an episode ends: the original shows the next one's start there,
// other programs where the last step led.
TEST_F(FileEnvironmentTest, AnEpisodesEndMayShowEither) {
  const Darkroom rooms(Variant::kGoals, {5, 20});
  Write(rooms, false, [&](History* h) {
    for (int64_t step = 19; step < h->steps; step += 20) {
      for (int64_t s = 0; s < kStreams; ++s) {
        const int64_t i = step * kStreams + s;
        const darkroom::Cell to =
            Move(rooms.room(), rooms.task(0),
                 {h->states[2 * i], h->states[2 * i + 1]}, h->actions[i]);
        h->next_states[2 * i] = to.row;
        h->next_states[2 * i + 1] = to.column;
      }
    }
  });
  ExpectFound(rooms);
}

TEST_F(FileEnvironmentTest, WhatCanNotBeToldIsSaid) {
  Write(Darkroom(Variant::kGoals, {5, 3000}), false);
  ExpectRefused("no episode ends in the first history of task 0", "path");
  Write(Darkroom(Variant::kGoals, {5, 3000}), true);
  ExpectFound(Darkroom(Variant::kGoals, {5, 3000}));
  Write(Darkroom(Variant::kPermuted, {30, 20}), false);
  ExpectRefused("none has a reward", "path");
  Write(Darkroom(Variant::kGoals, {5, 20}), false,
        [](History* h) { h->states[0] = 1; });
  ExpectRefused("begins at (1, 2): neither in the middle", "path");
}

}  // namespace
}  // namespace capstan::ad_history
