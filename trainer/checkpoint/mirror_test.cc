// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
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
        restart > 0 ? NewestMirroredStep(MirrorsIn(fds_)) : absl::nullopt;
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
        EXPECT_TRUE(mirror.Copy(StateAt(step), run.Parts(group)).ok());
      }
      return status;
    });
    ASSERT_TRUE(FirstError(statuses).ok()) << FirstError(statuses);
  }

  // The newest step, -1 if none; loads it on bounds.size() - 1 ranks.
  int64_t Newest(const std::vector<int64_t>& bounds) {
    const absl::optional<MirroredStep> newest =
        NewestMirroredStep(MirrorsIn(fds_));
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

// A run of one rank, and its mirror in the first files of `fds`.
struct OneRank {
  OneRank(const std::vector<int>& fds, int images, bool peers = false)
      : files(fds.begin(), fds.begin() + images),
        mirror(files, 0, absl::nullopt, peers) {}

  ThreadMeeting meeting{1};
  ThreadGroup group{&meeting, 0};
  FakeRun run{0, kOne};
  const std::vector<int> files;
  Mirror mirror;
  const CheckpointParts parts = run.Parts(group);
};

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
  ASSERT_EQ(pwrite(fds_[0], &other, 1, 40), 1);
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

// The last step of all ranks' files that `present` says are there.
int64_t NewestOf(const std::vector<int>& fds) {
  const absl::optional<MirroredStep> newest =
      NewestMirroredStep(MirrorsIn(fds));
  return newest.has_value() ? newest->state.step : -1;
}

// With peers a step that they have stays until they have a newer one, however
// many are copied meanwhile.
TEST_F(MirrorTest, WhatPeersHaveStays) {
  OneRank one(fds_, /*images=*/3, /*peers=*/true);
  Mirror& mirror = one.mirror;
  ASSERT_TRUE(mirror.Allocate(one.parts).ok());
  const auto copy = [&](int64_t step) {
    return mirror.Copy(StateAt(step), one.parts);
  };
  const auto steps = [&] {
    std::set<int64_t> found;
    for (const int fd : one.files) found.insert(NewestOf({fd}));
    return found;
  };
  ASSERT_TRUE(copy(1).ok());
  mirror.Sending();
  EXPECT_EQ(steps(), (std::set<int64_t>{-1, 1}));
  // 1 is still on its way.
  ASSERT_TRUE(copy(2).ok());
  ASSERT_TRUE(copy(3).ok());
  ASSERT_TRUE(copy(4).ok());
  EXPECT_EQ(steps(), (std::set<int64_t>{1, 3, 4}));
  mirror.PeersHave();
  const auto five = copy(5);
  mirror.Sending();
  EXPECT_EQ(steps(), (std::set<int64_t>{1, 4, 5}));
  ASSERT_TRUE(five.ok());
  EXPECT_EQ(five->key.sequence, 5);
  ASSERT_TRUE(copy(6).ok());
  ASSERT_TRUE(copy(7).ok());
  EXPECT_EQ(steps(), (std::set<int64_t>{1, 5, 7}));
  mirror.PeersHave();
  ASSERT_TRUE(copy(8).ok());
  mirror.Sending();
  ASSERT_TRUE(copy(9).ok());
  EXPECT_EQ(steps(), (std::set<int64_t>{5, 8, 9}));
}

// What a restart goes on from stays until the peers have something newer.
TEST_F(MirrorTest, TheSourceStaysUntilPeersHaveMore) {
  ThreadMeeting meeting(1);
  ThreadGroup group(&meeting, 0);
  FakeRun run(0, kOne);
  const std::vector<int> files(fds_.begin(), fds_.begin() + 3);
  {
    Mirror first(files, 0, absl::nullopt, /*peers=*/true);
    ASSERT_TRUE(first.Allocate(run.Parts(group)).ok());
    for (int64_t step = 1; step <= 2; ++step) {
      ASSERT_TRUE(first.Copy(StateAt(step), run.Parts(group)).ok());
    }
  }
  // The host that is lost had no newer one than step 1.
  const auto source = NewestMirroredStep(MirrorsIn(std::vector<int>{files[0]}));
  ASSERT_TRUE(source.has_value());
  Mirror mirror(files, 1, source, /*peers=*/true);
  ASSERT_TRUE(mirror.Allocate(run.Parts(group)).ok());
  ASSERT_TRUE(mirror.Copy(StateAt(11), run.Parts(group)).ok());
  mirror.Sending();
  ASSERT_TRUE(mirror.Copy(StateAt(12), run.Parts(group)).ok());
  ASSERT_TRUE(mirror.Copy(StateAt(13), run.Parts(group)).ok());
  EXPECT_EQ(NewestOf({files[0]}), 1);
  mirror.PeersHave();
  ASSERT_TRUE(mirror.Copy(StateAt(14), run.Parts(group)).ok());
  EXPECT_EQ(NewestOf(files), 14);
  EXPECT_EQ(NewestOf({files[0]}), 14);
}

// A size may come from another host.
TEST_F(MirrorTest, GrowsWithinTheMemoryThatIsLeft) {
  EXPECT_TRUE(absl::IsResourceExhausted(GrowMirror(fds_[0], int64_t{1} << 50)));
  EXPECT_TRUE(GrowMirror(fds_[0], 1 << 20).ok());
  EXPECT_EQ(MirrorBytesMissing(fds_[0], 1 << 20), 0);
}

// A copy that has begun replaces nothing before it is complete, and the next
// one only once it is on all ranks.
TEST_F(MirrorTest, AStepIsWholeOnceItsStateIsKnown) {
  OneRank one(fds_, /*images=*/2);
  Mirror& mirror = one.mirror;
  ASSERT_TRUE(mirror.Allocate(one.parts).ok());
  ASSERT_TRUE(mirror.Copy(StateAt(1), one.parts).ok());
  ASSERT_TRUE(mirror.MayBegin());

  ASSERT_TRUE(mirror.Begin(2, one.parts).ok());
  EXPECT_TRUE(mirror.pending());
  EXPECT_TRUE(mirror.awaits_state());
  EXPECT_FALSE(mirror.Complete()->has_value());
  EXPECT_EQ(NewestOf(one.files), 1);
  mirror.SetState(TrainStateText(StateAt(2)));
  EXPECT_EQ(NewestOf(one.files), 1);
  const auto whole = mirror.Complete();
  ASSERT_TRUE(whole.ok() && whole->has_value());
  EXPECT_EQ((*whole)->key.sequence, 2);
  EXPECT_FALSE(mirror.pending());
  EXPECT_EQ(NewestOf(one.files), 2);

  // What was told of the step that the copy is of came before it.
  mirror.NonePending(2);
  EXPECT_FALSE(mirror.MayBegin());
  mirror.NonePending(3);
  EXPECT_TRUE(mirror.MayBegin());
}

// After a return to a checkpoint; and where lists have grown too long.
TEST_F(MirrorTest, WhatIsGivenUpLeavesTheStepBefore) {
  OneRank one(fds_, /*images=*/2);
  Mirror& mirror = one.mirror;
  ASSERT_TRUE(mirror.Allocate(one.parts).ok());
  ASSERT_TRUE(mirror.Copy(StateAt(1), one.parts).ok());
  for (int64_t step = 2; step <= 4; ++step) {
    ASSERT_TRUE(mirror.Begin(step, one.parts).ok());
    mirror.Drop();
    EXPECT_TRUE(mirror.MayBegin());
    EXPECT_EQ(NewestOf(one.files), 1);
  }
  TrainState state = StateAt(5);
  state.bad_samples.resize(1 << 20);
  ASSERT_TRUE(mirror.Begin(5, one.parts).ok());
  mirror.SetState(TrainStateText(state));
  EXPECT_TRUE(absl::IsResourceExhausted(mirror.Complete().status()));
  // Not before all ranks know that none is pending.
  EXPECT_FALSE(mirror.MayBegin());
  mirror.NonePending(6);
  EXPECT_TRUE(mirror.MayBegin());
  EXPECT_EQ(NewestOf(one.files), 1);
  ASSERT_TRUE(mirror.Copy(StateAt(6), one.parts).ok());
  EXPECT_EQ(NewestOf(one.files), 6);
}

// What is given up is never sent: what peers have stays in its place.
TEST_F(MirrorTest, PeersNeverHaveWhatIsGivenUp) {
  OneRank one(fds_, /*images=*/3, /*peers=*/true);
  Mirror& mirror = one.mirror;
  ASSERT_TRUE(mirror.Allocate(one.parts).ok());
  ASSERT_TRUE(mirror.Copy(StateAt(1), one.parts).ok());
  mirror.Sending();
  mirror.PeersHave();
  ASSERT_TRUE(mirror.Begin(2, one.parts).ok());
  mirror.Sending();
  mirror.Drop();
  mirror.PeersHave();
  for (int64_t step = 3; step <= 6; ++step) {
    ASSERT_TRUE(mirror.Copy(StateAt(step), one.parts).ok());
  }
  EXPECT_EQ(NewestOf({one.files[0]}), 1);
  EXPECT_EQ(NewestOf(one.files), 6);
}

// Steps whose lists have grown too long leave alone what is there.
TEST_F(MirrorTest, StepsThatDontFitChangeNothing) {
  OneRank one(fds_, /*images=*/2);
  Mirror& mirror = one.mirror;
  ASSERT_TRUE(mirror.Allocate(one.parts).ok());
  ASSERT_TRUE(mirror.Copy(StateAt(1), one.parts).ok());
  for (int64_t step = 2; step <= 4; ++step) {
    TrainState state = StateAt(step);
    state.bad_samples.resize(1 << 20);
    EXPECT_FALSE(mirror.Copy(state, one.parts).ok());
    EXPECT_EQ(NewestOf(one.files), 1);
  }
  const auto fits = mirror.Copy(StateAt(5), one.parts);
  ASSERT_TRUE(fits.ok());
  EXPECT_EQ(fits->key.sequence, 2);
  EXPECT_EQ(NewestOf(one.files), 5);
}

// Whose reads fail from the `calls`-th on.
ReadMirror Failing(int fd, int calls) {
  return [read = ReadMirrorIn(fd), left = std::make_shared<int>(calls)](
             int64_t offset, int64_t bytes, char* out) -> absl::Status {
    if (--*left <= 0) return absl::UnavailableError("its host is gone");
    return read(offset, bytes, out);
  };
}

// Wherever it breaks off on one rank, no rank goes on with half of it.
TEST_F(MirrorTest, OneThatBreaksOffIsAnErrorOrChangesNothing) {
  Run(kTwo, 0, {1, 2});
  const absl::optional<MirroredStep> newest =
      NewestMirroredStep(MirrorsIn(fds_));
  ASSERT_TRUE(newest.has_value());
  const std::string empty = NewFolder();
  int touched = 0;
  int whole = 0;
  for (int calls = 1; whole == 0 && calls < 100; ++calls) {
    std::vector<char> unchanged(2, 0);
    const auto statuses = OnRanks(2, [&](ProcessGroup& group) -> absl::Status {
      const int rank = group.rank();
      FakeRun run(rank, kTwo);
      run.SetValues(100.0f);
      for (OptimizerShard& shard : run.shards_) {
        shard.working.copy_(shard.master);
      }
      MirroredStep step = *newest;
      // Step 2 is in the second file of each.
      if (rank == 1) step.images[1] = Failing(fds_[3], calls);
      const auto loaded = LoadMirrorOrCheckpoint(step, empty, run.Parts(group));
      unchanged[rank] = run.HasValues(100.0f) ? 1 : 0;
      if (!loaded.ok()) return loaded.status();
      EXPECT_EQ(loaded->mirror.ok(), loaded->from_mirror);
      EXPECT_TRUE(loaded->resumed.folder.empty());
      if (loaded->from_mirror) {
        EXPECT_TRUE(run.HasValues(2.5f));
        return absl::OkStatus();
      }
      EXPECT_TRUE(unchanged[rank]) << "call " << calls;
      return absl::CancelledError("unchanged");
    });
    EXPECT_EQ(statuses[0].code() == absl::StatusCode::kCancelled,
              statuses[1].code() == absl::StatusCode::kCancelled);
    EXPECT_EQ(statuses[0].ok(), statuses[1].ok());
    if (statuses[0].ok()) {
      ++whole;
    } else if (!absl::IsCancelled(statuses[0])) {
      ++touched;
      EXPECT_THAT(std::string(statuses[1].message()),
                  testing::HasSubstr("there is no checkpoint"));
    }
  }
  EXPECT_EQ(whole, 1);
  EXPECT_GT(touched, 0);
}

// A checkpoint overwrites all of it.
TEST_F(MirrorTest, OneThatBreaksOffGivesWayToACheckpoint) {
  Run(kOne, 0, {1, 2});
  absl::optional<MirroredStep> newest = NewestMirroredStep(MirrorsIn(fds_));
  ASSERT_TRUE(newest.has_value());
  const std::string folder = NewFolder();
  ASSERT_TRUE(FirstError(SaveWith(kOne, folder, 1)).ok());
  for (int calls = 1; calls < 6; ++calls) {
    ThreadMeeting meeting(1);
    ThreadGroup group(&meeting, 0);
    FakeRun run(0, kOne);
    newest->images[0] = Failing(fds_[1], calls);
    const auto loaded =
        LoadMirrorOrCheckpoint(newest, folder, run.Parts(group));
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->resumed.state.step, loaded->from_mirror ? 2 : 1);
    EXPECT_TRUE(run.HasValues(loaded->from_mirror ? 2.5f : 0.0f));
  }
}

// The host whose launcher had counted more restarts may be the one that is
// lost: what is made then is newer all the same.
TEST_F(MirrorTest, ARestartNumberThatFalls) {
  Run(kTwo, 7, {1, 2, 3});
  const int restart = RestartAfter(MirrorsIn(fds_), 2);
  EXPECT_EQ(restart, 8);
  EXPECT_EQ(RestartAfter(MirrorsIn(fds_), 9), 9);
  EXPECT_EQ(RestartAfter({}, 0), 0);
  Run(kTwo, restart, {4});
  EXPECT_EQ(Newest(kTwo), 4);
}

// Images of one key but of other ranks don't keep a step from being whole.
TEST_F(MirrorTest, ImagesOfAnotherWorldSizeDontCount) {
  Run(kThree, 0, {1});
  // Of the rank that two ranks haven't.
  std::vector<FoundMirror> found = MirrorsIn({fds_[4]});
  ASSERT_EQ(found.size(), 1u);
  ASSERT_EQ(found[0].image.rank, 2);
  for (const int fd : fds_) ASSERT_EQ(ftruncate(fd, 0), 0);
  Run(kTwo, 0, {2});
  for (const FoundMirror& one : MirrorsIn(fds_)) found.push_back(one);
  const absl::optional<MirroredStep> newest = NewestMirroredStep(found);
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->state.step, 2);
  EXPECT_EQ(newest->images.size(), 2u);
}

// Without memory for all that a rank needs, only what a restart may go on from
// keeps its own.
TEST_F(MirrorTest, MemoryIsGivenBackButTheSources) {
  Run(kOne, 0, {1, 2});
  const std::vector<FoundMirror> found = MirrorsIn({fds_[0], fds_[1]});
  ASSERT_EQ(found.size(), 2u);
  const MirrorKey source = found[1].image.key;
  for (const int fd : fds_) FreeMirror(fd, source);
  EXPECT_EQ(MirrorBytesMissing(fds_[0], 1), 1);
  EXPECT_EQ(MirrorBytesMissing(fds_[1], 1), 0);
  EXPECT_EQ(Newest(kOne), 2);
  FreeMirror(fds_[1], absl::nullopt);
  EXPECT_EQ(MirrorBytesMissing(fds_[1], 1), 1);
}

// Of plugins' states, which grow and shrink from step to step.
TEST_F(MirrorTest, AStateMayGrow) {
  for (const int64_t last : {1, 2, 3, 4, 5}) {
    const auto of_rank = [](int rank, int64_t step) {
      const int64_t bytes[] = {0, 10, 3 << 20, 5, 0};
      return std::string(bytes[step - 1] + rank, static_cast<char>('a' + step));
    };
    const auto copied = OnRanks(2, [&](ProcessGroup& group) {
      const int rank = group.rank();
      FakeRun run(rank, kTwo);
      Mirror mirror({fds_[2 * rank], fds_[2 * rank + 1]},
                    static_cast<int>(last), absl::nullopt);
      CheckpointParts parts = run.Parts(group);
      CAPSTAN_RETURN_IF_ERROR(mirror.Allocate(parts));
      for (int64_t step = 1; step <= last; ++step) {
        run.SetValues(static_cast<float>(step));
        std::string none;
        parts.plugins = {StateOf(kObjectiveKind, of_rank(rank, step), &none)};
        EXPECT_TRUE(mirror.Copy(StateAt(step), parts).ok());
      }
      return absl::OkStatus();
    });
    ASSERT_TRUE(FirstError(copied).ok()) << FirstError(copied);
    const absl::optional<MirroredStep> newest =
        NewestMirroredStep(MirrorsIn(fds_));
    ASSERT_TRUE(newest.has_value());
    ASSERT_EQ(newest->state.step, last);
    const auto loaded = OnRanks(3, [&](ProcessGroup& group) {
      FakeRun run(group.rank(), kThree);
      CheckpointParts parts = run.Parts(group);
      std::string got;
      parts.plugins = {StateOf(kObjectiveKind, "", &got)};
      const absl::Status status = LoadMirroredStep(*newest, parts).status();
      EXPECT_TRUE(got == of_rank(group.rank() % 2, last)) << got.size();
      EXPECT_TRUE(run.HasValues(static_cast<float>(last)));
      return status;
    });
    EXPECT_TRUE(FirstError(loaded).ok()) << FirstError(loaded);
  }
}

TEST_F(MirrorTest, AnotherModelIsRefused) {
  Run(kOne, 0, {1});
  const absl::optional<MirroredStep> newest =
      NewestMirroredStep(MirrorsIn(fds_));
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

// Else a restart would open as many connections as the square of the ranks.
TEST_F(MirrorTest, ARankReadsOnlyItsOwnImage) {
  Run(kThree, 0, {1});
  const auto loaded = OnRanks(3, [&](ProcessGroup& group) {
    const int rank = group.rank();
    std::vector<FoundMirror> found = MirrorsIn(fds_);
    int others = 0;
    for (FoundMirror& one : found) {
      one.here = one.image.rank == rank;
      if (one.here) continue;
      one.read = [&others, read = one.read](int64_t offset, int64_t bytes,
                                            char* out) {
        ++others;
        return read(offset, bytes, out);
      };
    }
    const absl::optional<MirroredStep> newest = NewestMirroredStep(found);
    EXPECT_TRUE(newest.has_value());
    FakeRun run(rank, kThree);
    const absl::Status status =
        LoadMirroredStep(*newest, run.Parts(group)).status();
    EXPECT_TRUE(run.HasValues(1.5f));
    EXPECT_EQ(others, 0);
    return status;
  });
  EXPECT_TRUE(FirstError(loaded).ok()) << FirstError(loaded);
}

}  // namespace
}  // namespace capstan
