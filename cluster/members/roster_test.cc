// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

class RosterTest : public testing::Test {
 protected:
  RosterTest() {
    options_.max_ranks = 4;
    options_.max_restarts = 100;
  }

  void Make() { roster_ = std::make_unique<Roster>(options_, now_); }
  void Come(const std::string& id) { roster_->Came(id, now_); }
  // The worlds of the next `time`, asked for when the roster says so.
  std::vector<Roster::World> Worlds(milliseconds time) {
    std::vector<Roster::World> worlds;
    const Deadline end = now_ + time;
    while (true) {
      if (const auto next = roster_->Next(now_)) {
        worlds.push_back(*next);
        continue;
      }
      ending_ = roster_->End(now_);
      if (roster_->next_event() > end) break;
      EXPECT_GT(roster_->next_event(), now_);
      now_ = roster_->next_event();
    }
    now_ = end;
    return worlds;
  }
  Roster::World OnlyWorld(milliseconds time) {
    const std::vector<Roster::World> worlds = Worlds(time);
    EXPECT_EQ(worlds.size(), 1);
    return worlds.empty() ? Roster::World() : worlds[0];
  }
  // A world of these, with a finished step.
  void Begin(const std::vector<std::string>& ids) {
    Make();
    for (const std::string& id : ids) Come(id);
    EXPECT_EQ(OnlyWorld(seconds(5)).hosts, ids);
    roster_->Progressed(1);
  }

  Roster::Options options_;
  Deadline now_ = Deadline(seconds(1000));
  std::unique_ptr<Roster> roster_;
  absl::optional<Roster::Ending> ending_;
};

TEST_F(RosterTest, BeginsAtOnceWhenAsManyAsMayHaveCome) {
  Make();
  for (const char* id : {"a", "b", "c"}) Come(id);
  EXPECT_TRUE(Worlds(milliseconds(0)).empty());
  Come("d");
  const Roster::World world = OnlyWorld(milliseconds(0));
  EXPECT_EQ(world.number, 1);
  EXPECT_FALSE(world.gentle);
  EXPECT_THAT(world.hosts, ElementsAre("a", "b", "c", "d"));
}

TEST_F(RosterTest, BeginsWithFewerOnceNobodyComesAnyMore) {
  Make();
  Come("a");
  EXPECT_TRUE(Worlds(seconds(2)).empty());
  Come("b");
  EXPECT_TRUE(Worlds(milliseconds(2999)).empty());
  EXPECT_THAT(OnlyWorld(milliseconds(1)).hosts, ElementsAre("a", "b"));
}

TEST_F(RosterTest, WaitsForTheHostsThatTheLauncherNames) {
  options_.first_hosts = 3;
  Make();
  Come("a");
  Come("b");
  EXPECT_TRUE(Worlds(seconds(10)).empty());
  Come("c");
  EXPECT_THAT(OnlyWorld(seconds(0)).hosts, ElementsAre("a", "b", "c"));
}

TEST_F(RosterTest, GoesOnWithoutThemAfterItsPatience) {
  options_.first_hosts = 3;
  Make();
  Come("a");
  EXPECT_TRUE(Worlds(seconds(200)).empty());
  Come("b");
  EXPECT_TRUE(Worlds(milliseconds(299999)).empty());
  EXPECT_THAT(OnlyWorld(milliseconds(1)).hosts, ElementsAre("a", "b"));
}

// The next one may still be queued.
TEST_F(RosterTest, TooFewToBeginWaitLongerThanTooFewThatAreLeft) {
  options_.min_ranks = 3;
  Make();
  Come("a");
  EXPECT_TRUE(Worlds(seconds(200)).empty());
  EXPECT_FALSE(ending_.has_value());
  Come("b");
  EXPECT_TRUE(Worlds(milliseconds(299999)).empty());
  EXPECT_FALSE(ending_.has_value());
  EXPECT_TRUE(Worlds(milliseconds(1)).empty());
  ASSERT_TRUE(ending_.has_value());
  EXPECT_THAT(ending_->text, HasSubstr("nobody has come in 300 s"));
}

TEST_F(RosterTest, AHostThatIsGoneIsLeftOutAtOnce) {
  Begin({"a", "b", "c"});
  roster_->Lost("b", now_);
  const Roster::World world = OnlyWorld(milliseconds(100));
  EXPECT_EQ(world.number, 2);
  EXPECT_FALSE(world.gentle);
  EXPECT_THAT(world.hosts, ElementsAre("a", "c"));
  EXPECT_EQ(world.why, "host b is gone");
}

TEST_F(RosterTest, SeveralThatAreGoneAreOneChange) {
  Begin({"a", "b", "c", "d"});
  roster_->Lost("b", now_);
  now_ += milliseconds(50);
  roster_->Lost("d", now_);
  EXPECT_THAT(OnlyWorld(seconds(1)).hosts, ElementsAre("a", "c"));
}

TEST_F(RosterTest, HostsThatComeAreTakenInGentlyAfterTheOthers) {
  Begin({"b", "c"});
  Come("a");
  now_ += milliseconds(400);
  Come("d");
  const Roster::World world = OnlyWorld(seconds(1));
  EXPECT_TRUE(world.gentle);
  EXPECT_FALSE(world.saves);
  EXPECT_THAT(world.hosts, ElementsAre("b", "c", "a", "d"));
  EXPECT_EQ(world.why, "host a has come, host d has come");
}

TEST_F(RosterTest, WhoComesWaitsUntilTheWorldHasDoneAStep) {
  Begin({"a", "b"});
  Come("c");
  EXPECT_EQ(Worlds(seconds(1)).size(), 1);
  Come("d");
  EXPECT_TRUE(Worlds(seconds(60)).empty());
  roster_->Progressed(1);
  EXPECT_THAT(OnlyWorld(seconds(0)).hosts, ElementsAre("a", "b", "c", "d"));
}

TEST_F(RosterTest, ASpareReplacesAHostThatIsGone) {
  Begin({"a", "b", "c", "d"});
  Come("e");
  EXPECT_TRUE(Worlds(seconds(1)).empty());
  roster_->Lost("b", now_);
  EXPECT_THAT(OnlyWorld(milliseconds(100)).hosts,
              ElementsAre("a", "c", "d", "e"));
}

TEST_F(RosterTest, AHostThatLeavesIsLeftOutGently) {
  Begin({"a", "b", "c", "d"});
  roster_->Leaving("a", now_);
  const Roster::World one = OnlyWorld(seconds(1));
  EXPECT_TRUE(one.gentle);
  EXPECT_FALSE(one.saves);
  EXPECT_THAT(one.hosts, ElementsAre("b", "c", "d"));
  roster_->Leaving("b", now_);
  roster_->Leaving("d", now_);
  const Roster::World two = OnlyWorld(seconds(1));
  EXPECT_TRUE(two.saves);
  EXPECT_THAT(two.hosts, ElementsAre("c"));
}

TEST_F(RosterTest, TheRunStopsIfTooManyLeave) {
  options_.min_ranks = 2;
  Begin({"a", "b", "c"});
  roster_->Leaving("b", now_);
  roster_->Leaving("c", now_);
  EXPECT_TRUE(Worlds(seconds(1)).empty());
  ASSERT_TRUE(ending_.has_value());
  EXPECT_TRUE(ending_->stops);
  EXPECT_THAT(ending_->text, HasSubstr("only 1 rank is left"));
}

TEST_F(RosterTest, TooFewWaitForOthers) {
  options_.min_ranks = 2;
  Begin({"a", "b"});
  roster_->Lost("b", now_);
  EXPECT_TRUE(Worlds(seconds(29)).empty());
  EXPECT_FALSE(ending_.has_value());
  Come("c");
  EXPECT_THAT(OnlyWorld(seconds(1)).hosts, ElementsAre("a", "c"));
  roster_->Lost("c", now_);
  EXPECT_TRUE(Worlds(seconds(31)).empty());
  ASSERT_TRUE(ending_.has_value());
  EXPECT_FALSE(ending_->stops);
  EXPECT_THAT(ending_->text, HasSubstr("host c is gone"));
}

TEST_F(RosterTest, RanksThatDieAreStartedAgainOnTheSameHosts) {
  Begin({"a", "b"});
  roster_->Died("b", 1, 7, "rank 1 was killed", true, now_);
  // The others' follow.
  roster_->Died("a", 1, 7, "rank 0 lost the others", false, now_);
  const Roster::World world = OnlyWorld(seconds(1));
  EXPECT_THAT(world.hosts, ElementsAre("a", "b"));
  EXPECT_FALSE(world.gentle);
  EXPECT_THAT(world.why, HasSubstr("rank 1 was killed"));
  EXPECT_TRUE(Worlds(seconds(60)).empty());
}

TEST_F(RosterTest, DeathsBeforeAnyStepEndTheRun) {
  Begin({"a", "b"});
  for (int world = 1; world <= 3; ++world) {
    EXPECT_FALSE(ending_.has_value());
    roster_->Died("b", world, -1, "were killed", true, now_);
    Worlds(seconds(1));
  }
  ASSERT_TRUE(ending_.has_value());
  EXPECT_THAT(ending_->text, HasSubstr("no step finished between"));
}

TEST_F(RosterTest, ANewHostThatFailsIsLeftOutAndOthersEndTheRun) {
  Begin({"a", "b"});
  Come("c");
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 3);
  EXPECT_FALSE(roster_->Failed("a", 2, "no memory", now_));
  EXPECT_TRUE(roster_->Failed("c", 2, "no memory", now_));
  const Roster::World world = OnlyWorld(seconds(1));
  EXPECT_THAT(world.hosts, ElementsAre("a", "b"));
  EXPECT_EQ(world.why, "host c can't take part: no memory");
  EXPECT_TRUE(roster_->LeftOut("c"));
  // It isn't tried again.
  roster_->Progressed(1);
  EXPECT_TRUE(Worlds(seconds(60)).empty());
}

TEST_F(RosterTest, ANewHostWhoseRanksDieIsLeftOut) {
  options_.max_restarts = 1;
  Begin({"a", "b"});
  Come("c/1");
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 3);
  roster_->Died("c/1", 2, -1, "rank 2 was killed", true, now_);
  EXPECT_THAT(OnlyWorld(seconds(1)).hosts, ElementsAre("a", "b"));
  EXPECT_FALSE(ending_.has_value());
  // Nor when it is started again.
  roster_->Progressed(1);
  Come("c/2");
  EXPECT_TRUE(Worlds(seconds(60)).empty());
  EXPECT_TRUE(roster_->LeftOut("c/2"));
}

TEST_F(RosterTest, ANewHostThatFailsInItsFirstStepsIsLeftOut) {
  options_.max_restarts = 1;
  for (const bool dies : {true, false}) {
    Begin({"a", "b"});
    Come("c");
    EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 3);
    for (int step = 40; step < 49; ++step) roster_->Progressed(step);
    if (dies) {
      roster_->Died("c", 2, 48, "rank 2 was killed", true, now_);
    } else {
      EXPECT_TRUE(roster_->Failed("c", 2, "no memory", now_));
    }
    EXPECT_THAT(OnlyWorld(seconds(1)).hosts, ElementsAre("a", "b"));
    EXPECT_FALSE(ending_.has_value());
    EXPECT_TRUE(roster_->LeftOut("c"));
  }
}

TEST_F(RosterTest, AHostIsNewForSoManyStepsInAllItsWorlds) {
  Begin({"a", "b"});
  Come("c");
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 3);
  for (int step = 40; step < 45; ++step) roster_->Progressed(step);
  Come("d");
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 4);
  for (int step = 45; step < 50; ++step) roster_->Progressed(step);
  roster_->Died("c", 3, 49, "rank 2 was killed", true, now_);
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 4);
  roster_->Died("d", 4, 51, "rank 3 was killed", true, now_);
  EXPECT_THAT(OnlyWorld(seconds(1)).hosts, ElementsAre("a", "b", "c"));
}

TEST_F(RosterTest, AfterNewHostsThatGoOthersWaitLongerAndLonger) {
  Begin({"a", "b"});
  for (const int pause : {0, 5, 10, 20}) {
    Come(absl::StrCat("c/", pause));
    if (pause > 0) {
      EXPECT_TRUE(Worlds(seconds(pause - 1)).empty()) << pause;
    }
    EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 3) << pause;
    roster_->Progressed(100 + pause);
    // Another is there to be taken at once.
    Come(absl::StrCat("d/", pause));
    roster_->Lost(absl::StrCat("c/", pause), now_);
    EXPECT_THAT(Worlds(milliseconds(100)).back().hosts, ElementsAre("a", "b"));
    roster_->Lost(absl::StrCat("d/", pause), now_);
    roster_->Progressed(200 + pause);
  }
  // One that stays ends that.
  Come("e");
  EXPECT_EQ(OnlyWorld(seconds(40)).hosts.size(), 3);
  for (int step = 300; step < 310; ++step) roster_->Progressed(step);
  Come("f");
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 4);
}

TEST_F(RosterTest, ANewHostThatFailsAndThenIsGoneCountsOnce) {
  Begin({"a", "b"});
  Come("c");
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 3);
  EXPECT_TRUE(roster_->Failed("c", 2, "no memory", now_));
  roster_->Lost("c", now_);
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 2);
  roster_->Progressed(1);
  Come("d");
  EXPECT_TRUE(Worlds(seconds(3)).empty());
  EXPECT_EQ(OnlyWorld(seconds(2)).hosts.size(), 3);
}

TEST_F(RosterTest, AHostJoinsAtOnceIfTheOthersAreNoMultiple) {
  options_.multiple = 2;
  Begin({"a", "b"});
  Come("c");
  Come("d");
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 4);
  roster_->Lost("c", now_);
  EXPECT_THAT(OnlyWorld(seconds(1)).hosts, ElementsAre("a", "b"));
  roster_->Progressed(1);
  roster_->Lost("b", now_);
  EXPECT_THAT(OnlyWorld(seconds(1)).hosts, ElementsAre("a", "d"));
}

TEST_F(RosterTest, AHostIsLeftOutByItsMachine) {
  Begin({"a@1/7", "b@2/7"});
  roster_->LeaveOut("b@2/7", "host b is slow", now_);
  const Roster::World world = OnlyWorld(seconds(1));
  EXPECT_THAT(world.hosts, ElementsAre("a@1/7"));
  Come("other@2/8");
  EXPECT_TRUE(roster_->LeftOut("other@2/8"));
  Come("b@3/8");
  EXPECT_FALSE(roster_->LeftOut("b@3/8"));
  EXPECT_EQ(NameIn("b@3/8"), "b");
}

TEST_F(RosterTest, HalfOfTheHostsThatAreSilentMayGoOnElsewhere) {
  Begin({"a", "b", "c"});
  roster_->Lost("b", now_, /*silent=*/true);
  EXPECT_FALSE(roster_->CutOff());
  roster_->Lost("c", now_, /*silent=*/true);
  EXPECT_TRUE(roster_->CutOff());
  EXPECT_FALSE(roster_->Whole());
  EXPECT_TRUE(Worlds(seconds(29)).empty());
  EXPECT_THAT(OnlyWorld(seconds(2)).hosts, ElementsAre("a"));
  EXPECT_TRUE(roster_->Whole());
  EXPECT_FALSE(roster_->CutOff());
}

TEST_F(RosterTest, RanksThatLostOthersAreAHintOfALoss) {
  options_.max_restarts = 1;
  Begin({"a", "b", "c"});
  roster_->Died("a", 1, 7, "rank 0 lost the others", false, now_);
  EXPECT_TRUE(Worlds(milliseconds(500)).empty());
  roster_->Lost("c", now_);
  EXPECT_THAT(OnlyWorld(milliseconds(200)).hosts, ElementsAre("a", "b"));
  // Without a loss the ranks are started again all the same.
  roster_->Died("a", 2, 7, "rank 0 lost the others", false, now_);
  EXPECT_THAT(OnlyWorld(seconds(2)).hosts, ElementsAre("a", "b"));
}

TEST_F(RosterTest, NumbersExceedAllThatAnyoneKnows) {
  Begin({"a", "b"});
  roster_->Came("c", now_, 41);
  EXPECT_EQ(OnlyWorld(seconds(1)).number, 42);
}

TEST_F(RosterTest, AnErrorOfAnEarlierWorldEndsNothing) {
  Begin({"a", "b", "c"});
  roster_->Lost("c", now_);
  EXPECT_EQ(OnlyWorld(seconds(1)).number, 2);
  EXPECT_TRUE(roster_->Failed("b", 1, "a peer is gone", now_));
  EXPECT_FALSE(roster_->Failed("b", 2, "no memory", now_));
}

TEST_F(RosterTest, AWorldOfOtherHostsGoesOnFromACheckpoint) {
  Begin({"a"});
  Come("b");
  roster_->Leaving("a", now_);
  const Roster::World world = OnlyWorld(seconds(1));
  EXPECT_THAT(world.hosts, ElementsAre("b"));
  EXPECT_TRUE(world.gentle);
  EXPECT_TRUE(world.saves);
}

TEST_F(RosterTest, AHostThatIsLeftOutStaysOut) {
  Begin({"a", "b", "c"});
  roster_->LeaveOut("b", "host b is slow", now_);
  const Roster::World world = OnlyWorld(seconds(1));
  EXPECT_TRUE(world.gentle);
  EXPECT_THAT(world.hosts, ElementsAre("a", "c"));
  roster_->Progressed(1);
  Come("b");
  EXPECT_TRUE(Worlds(seconds(60)).empty());
}

TEST_F(RosterTest, AWorldIsAMultiple) {
  options_.multiple = 2;
  Begin({"a", "b"});
  Come("c");
  EXPECT_TRUE(Worlds(seconds(1)).empty());
  Come("d");
  EXPECT_EQ(OnlyWorld(seconds(1)).hosts.size(), 4);
  roster_->Lost("d", now_);
  EXPECT_THAT(OnlyWorld(seconds(1)).hosts, ElementsAre("a", "b"));
}

TEST_F(RosterTest, ASuccessorWaitsForTheOthers) {
  Make();
  Roster::World before;
  before.number = 5;
  before.hosts = {"a", "b", "c"};
  roster_->TakeOver(before, {}, now_);
  Come("b");
  EXPECT_TRUE(Worlds(milliseconds(500)).empty());
  Come("c");
  const Roster::World world = OnlyWorld(milliseconds(0));
  EXPECT_EQ(world.number, 6);
  EXPECT_FALSE(world.gentle);
  EXPECT_THAT(world.hosts, ElementsAre("b", "c"));
  EXPECT_EQ(world.why, "host a is gone");
}

TEST_F(RosterTest, ASuccessorThatLeavesBeforeTheRanksDoSaves) {
  Make();
  Roster::World before;
  before.number = 5;
  before.hosts = {"a", "b", "c"};
  roster_->TakeOver(before, {/*told=*/true, /*gentle=*/true}, now_);
  Come("b");
  Come("c");
  EXPECT_FALSE(OnlyWorld(seconds(1)).saves);
  roster_->Leaving("b", now_);
  const Roster::World world = OnlyWorld(seconds(1));
  EXPECT_THAT(world.hosts, ElementsAre("c"));
  EXPECT_TRUE(world.saves);
}

TEST_F(RosterTest, ASuccessorGoesOnWithoutThoseWhoDontCome) {
  Make();
  Roster::World before;
  before.number = 5;
  before.hosts = {"a", "b", "c"};
  roster_->TakeOver(before, {/*told=*/true, /*gentle=*/true}, now_);
  Come("b");
  const Roster::World world = OnlyWorld(seconds(3));
  EXPECT_THAT(world.hosts, ElementsAre("b"));
  EXPECT_TRUE(world.gentle);
}

}  // namespace
}  // namespace capstan
