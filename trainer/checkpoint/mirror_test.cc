// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint_testing.h"

namespace capstan {
namespace {

constexpr int64_t kFlat = FakeRun::kFlat;

class MirrorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2 * 3; ++i) {
      fds_.push_back(memfd_create("mirror", MFD_CLOEXEC));
      ASSERT_GE(fds_.back(), 0);
    }
  }
  void TearDown() override {
    for (const int fd : fds_) close(fd);
  }

  // As ranks that the launcher has started `restart` times anew: mirror the
  // steps after what they go on from, with values of step + 0.5.
  void Run(const std::vector<int64_t>& bounds, int restart,
           const std::vector<int64_t>& steps, int last_rank = 99) {
    const absl::optional<MirroredStep> source =
        restart > 0 ? NewestMirroredStep(fds_) : absl::nullopt;
    const auto statuses = OnRanks(bounds.size() - 1, [&](ProcessGroup& group) {
      const int rank = group.rank();
      FakeRun run(rank, bounds);
      Mirror mirror({fds_[2 * rank], fds_[2 * rank + 1]}, restart, source);
      absl::Status status = mirror.Allocate(run.Parts(group));
      EXPECT_EQ(mirror.BytesToAllocate(run.Parts(group)), 0);
      for (const int64_t step : steps) {
        run.SetValues(static_cast<float>(step) + 0.5f);
        // The last step of some ranks alone: the others have died.
        if (step == steps.back() && rank > last_rank) continue;
        mirror.Copy(StateAt(step), run.Parts(group));
      }
      return status;
    });
    ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  }

  // The newest step, -1 if none; loads it on bounds.size() - 1 ranks.
  int64_t Newest(const std::vector<int64_t>& bounds) {
    const absl::optional<MirroredStep> newest = NewestMirroredStep(fds_);
    if (!newest.has_value()) return -1;
    const int64_t step = newest->state.step;
    const auto statuses = OnRanks(bounds.size() - 1, [&](ProcessGroup& group) {
      FakeRun run(group.rank(), bounds);
      const auto state = LoadMirroredStep(*newest, run.Parts(group));
      EXPECT_TRUE(run.HasValues(static_cast<float>(step) + 0.5f));
      if (state.ok()) {
        EXPECT_EQ(state->samples, StateAt(step).samples);
        EXPECT_EQ(state->last_loss, StateAt(step).last_loss);
      }
      return state.status();
    });
    EXPECT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
    return step;
  }

  std::vector<int> fds_;
};

const std::vector<int64_t> kOne = {0, kFlat};
const std::vector<int64_t> kTwo = {0, 13, kFlat};
const std::vector<int64_t> kThree = {0, 9, 22, kFlat};

TEST_F(MirrorTest, NothingIsThereAtFirst) { EXPECT_EQ(Newest(kOne), -1); }

TEST_F(MirrorTest, AnyNumberOfRanksGoesOn) {
  Run(kThree, 0, {1, 2, 3});
  EXPECT_EQ(Newest(kThree), 3);
  EXPECT_EQ(Newest(kTwo), 3);
  EXPECT_EQ(Newest(kOne), 3);
}

TEST_F(MirrorTest, AStepThatNotAllRanksHaveFinishedIsNone) {
  Run(kThree, 0, {1}, /*last_rank=*/1);
  EXPECT_EQ(Newest(kThree), -1);
  Run(kThree, 0, {1, 2, 3}, /*last_rank=*/0);
  EXPECT_EQ(Newest(kThree), 2);
}

TEST_F(MirrorTest, ADeathInTheMidstOfACopy) {
  Run(kTwo, 0, {4, 5});
  // Rank 1 has begun to copy step 6 over step 4: its first byte is 0.
  const char begun = 0;
  ASSERT_EQ(pwrite(fds_[2], &begun, 1, 0), 1);
  EXPECT_EQ(Newest(kTwo), 5);
  ASSERT_EQ(pwrite(fds_[3], &begun, 1, 0), 1);
  EXPECT_EQ(Newest(kTwo), -1);
}

TEST_F(MirrorTest, AHeaderThatIsHalfWrittenIsNone) {
  Run(kOne, 0, {7});
  const char other = 77;
  ASSERT_EQ(pwrite(fds_[0], &other, 1, 100), 1);
  EXPECT_EQ(Newest(kOne), -1);
}

TEST_F(MirrorTest, WhatTheRunGoesOnFromStaysUntilAllHaveMore) {
  Run(kThree, 0, {1, 2});
  // Again with fewer ranks, which die during their first copy.
  Run(kTwo, 1, {3}, /*last_rank=*/0);
  EXPECT_EQ(Newest(kTwo), 2);
  Run(kTwo, 2, {3}, /*last_rank=*/-1);
  EXPECT_EQ(Newest(kTwo), 2);
  Run(kTwo, 3, {3, 4, 5});
  EXPECT_EQ(Newest(kThree), 5);
  // A restart that goes back has the newest all the same.
  Run(kThree, 4, {2});
  EXPECT_EQ(Newest(kTwo), 2);
}

TEST_F(MirrorTest, AnotherModelIsRefused) {
  Run(kOne, 0, {1});
  const absl::optional<MirroredStep> newest = NewestMirroredStep(fds_);
  ASSERT_TRUE(newest.has_value());
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, {0, 13}, {{"a.weight", {5, 4}, 0, true}});
  EXPECT_THAT(
      std::string(
          LoadMirroredStep(*newest, run.Parts(group)).status().message()),
      testing::HasSubstr("the mirror of step 1: the checkpoint was "
                         "made by another model"));
}

}  // namespace
}  // namespace capstan
