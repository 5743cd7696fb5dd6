// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/late.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int64_t kSecond = 1000 * 1000 * 1000;

template <size_t kBytes>
void Set(const std::string& text, char (&to)[kBytes]) {
  std::memset(to, 0, kBytes);
  std::memcpy(to, text.data(), std::min(text.size(), kBytes - 1));
}

// In forward of step 13, having begun 811 collectives.
RankView Computing(int rank) {
  RankView view;
  view.rank = rank;
  view.pid = 100 + rank;
  view.state = ProcessState::kComputing;
  view.alarm = true;
  Set("step", view.activity);
  Set("forward", view.phase);
  view.step = 13;
  view.activity_ns = 22 * kSecond;
  view.phase_ns = 21 * kSecond;
  view.limit_ns = 20 * kSecond;
  GroupView& group = view.groups[0];
  group.sees_ends = true;
  group.issued = group.started = 811;
  return view;
}

RankView Waiting(int rank, const std::string& name, uint64_t number,
                 const std::string& label, int64_t bytes = 25 << 20) {
  RankView view = Computing(rank);
  view.state = ProcessState::kWaiting;
  Set("backward", view.phase);
  GroupView& group = view.groups[0];
  group.issued = number + 1;
  group.started = number;
  group.current.number = number;
  group.current.bytes = bytes;
  Set(name, group.current.name);
  Set(label, group.current.label);
  return view;
}

RankView InBucket(int rank) {
  return Waiting(rank, "all-reduce", 812, "bucket 3");
}

std::vector<HostView> OneHost(std::vector<RankView> ranks) {
  return {{"a", 0.0, false, std::move(ranks)}};
}

TEST(JudgeTest, WhoComputesWhileOthersWait) {
  const Judgement judgement =
      Judge(OneHost({InBucket(0), InBucket(1), Computing(2), InBucket(3)}));
  EXPECT_THAT(judgement.late, ElementsAre(2));
  EXPECT_EQ(judgement.text,
            "rank 2 is late: in forward of step 13 for 21 s, computing; ranks "
            "0, 1, 3 wait in all-reduce 812 of bucket 3 (25.0 MiB)");
}

TEST(JudgeTest, WhoIsStoppedIsLateWhereverHeIs) {
  RankView stopped = InBucket(2);
  stopped.state = ProcessState::kStopped;
  // Another isn't there yet: it waits for nobody, but isn't the matter.
  const Judgement judgement =
      Judge(OneHost({InBucket(0), Computing(1), stopped, InBucket(3)}));
  EXPECT_THAT(judgement.late, ElementsAre(2));
  EXPECT_THAT(judgement.text,
              HasSubstr("rank 2 is late: in backward of step 13 for 21 s, in "
                        "all-reduce 812 of bucket 3 (25.0 MiB), stopped "
                        "(SIGSTOP)"));
  EXPECT_THAT(judgement.text, HasSubstr("ranks 0, 3 wait in all-reduce 812"));
  EXPECT_THAT(judgement.text, HasSubstr("rank 1 is in forward of step 13"));
}

TEST(JudgeTest, WhoIsGoneOrDebugged) {
  RankView gone = Computing(1);
  gone.state = ProcessState::kGone;
  RankView traced = Computing(2);
  traced.state = ProcessState::kTraced;
  const Judgement judgement = Judge(OneHost({InBucket(0), gone, traced}));
  EXPECT_THAT(judgement.late, ElementsAre(1, 2));
  EXPECT_THAT(judgement.text, HasSubstr("its process is gone"));
  EXPECT_THAT(judgement.text, HasSubstr("stopped by a debugger"));
}

TEST(JudgeTest, TheFurthestBehindOfTwo) {
  RankView further = Computing(3);
  further.groups[0].issued = further.groups[0].started = 700;
  const Judgement judgement =
      Judge(OneHost({InBucket(0), Computing(1), InBucket(2), further}));
  EXPECT_THAT(judgement.late, ElementsAre(3));
}

TEST(JudgeTest, CollectivesThatDiffer) {
  const Judgement judgement =
      Judge(OneHost({Waiting(0, "all-gather", 99, "layers.6"),
                     Waiting(1, "all-gather", 99, "layers.6"),
                     Waiting(2, "reduce-scatter", 99, "layers.7"),
                     Waiting(3, "all-gather", 99, "layers.6")}));
  EXPECT_THAT(judgement.late, ElementsAre(2));
  EXPECT_EQ(judgement.text,
            "the ranks' collectives differ: ranks 0, 1, 3 wait in all-gather "
            "99 of layers.6 (25.0 MiB); rank 2 waits in reduce-scatter 99 of "
            "layers.7 (25.0 MiB)");
}

TEST(JudgeTest, BytesThatDiffer) {
  const Judgement judgement =
      Judge(OneHost({Waiting(0, "all-reduce", 5, "", 4000),
                     Waiting(1, "all-reduce", 5, "", 3600),
                     Waiting(2, "all-reduce", 5, "", 4000)}));
  EXPECT_THAT(judgement.late, ElementsAre(1));
  EXPECT_THAT(judgement.text, HasSubstr("collectives differ"));
}

// Ranks in the same kind of collective, one of them in an earlier one.
TEST(JudgeTest, AnEarlierOneOfTheSameKind) {
  const Judgement judgement =
      Judge(OneHost({Waiting(0, "all-reduce", 813, "bucket 3"),
                     Waiting(1, "all-reduce", 812, "bucket 3")}));
  EXPECT_THAT(judgement.late, ElementsAre(1));
  EXPECT_THAT(judgement.text, Not(HasSubstr("differ")));
}

// With one rank stopped the others may wait in different groups: that is no
// divergence.
TEST(JudgeTest, DifferentGroupsBecauseOfOne) {
  RankView stopped = Computing(3);
  stopped.state = ProcessState::kStopped;
  RankView elsewhere = Computing(0);
  elsewhere.groups[2] = Waiting(0, "all-reduce", 40, "layers.1").groups[0];
  const Judgement judgement =
      Judge(OneHost({elsewhere, Waiting(1, "reduce-scatter", 812, "layers.1"),
                     Waiting(2, "reduce-scatter", 812, "layers.1"), stopped}));
  EXPECT_THAT(judgement.late, ElementsAre(3));
  EXPECT_THAT(judgement.text, Not(HasSubstr("differ")));
  EXPECT_THAT(judgement.text,
              HasSubstr("rank 0 waits in all-reduce 40 of layers.1 (25.0 MiB, "
                        "process group 2)"));
}

TEST(JudgeTest, AllInTheSameCollective) {
  const Judgement judgement = Judge(OneHost({InBucket(0), InBucket(1)}));
  EXPECT_THAT(judgement.late, IsEmpty());
  EXPECT_EQ(judgement.text,
            "no rank is behind the others; ranks 0, 1 wait in all-reduce 812 "
            "of bucket 3 (25.0 MiB)");
}

TEST(JudgeTest, ARankAlone) {
  const Judgement judgement = Judge(OneHost({Computing(0)}));
  EXPECT_THAT(judgement.late, ElementsAre(0));
  EXPECT_EQ(judgement.text,
            "rank 0 is late: in forward of step 13 for 21 s, computing");
}

// NCCL's ends aren't seen: who has issued fewer.
TEST(JudgeTest, OnGpusWhoHasIssuedFewer) {
  std::vector<RankView> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    RankView view = Waiting(rank, "all-reduce", 812, "bucket 3");
    view.groups[0].sees_ends = false;
    view.groups[0].issued = rank == 1 ? 810 : 812;
    ranks.push_back(view);
  }
  const Judgement judgement = Judge(OneHost(ranks));
  EXPECT_THAT(judgement.late, ElementsAre(1));
  EXPECT_THAT(judgement.text, HasSubstr("having issued all-reduce 812"));
  for (RankView& view : ranks) view.groups[0].issued = 812;
  EXPECT_THAT(Judge(OneHost(ranks)).late, IsEmpty());
}

TEST(JudgeTest, AHostThatIsSilent) {
  const std::vector<HostView> hosts = {
      {"alpha", 0.0, false, {InBucket(0), InBucket(1)}},
      {"beta", 31.0, false, {InBucket(2), InBucket(3)}}};
  const Judgement judgement = Judge(hosts);
  EXPECT_THAT(judgement.late, ElementsAre(2, 3));
  EXPECT_EQ(judgement.text,
            "host beta (ranks 2, 3) doesn't answer since 31 s; ranks 0, 1 "
            "wait in all-reduce 812 of bucket 3 (25.0 MiB)");
}

TEST(JudgeTest, AnotherHostsRank) {
  const Judgement judgement =
      Judge({{"alpha", 0.0, false, {InBucket(0), InBucket(1)}},
             {"beta", 0.0, false, {InBucket(2), Computing(3)}}});
  EXPECT_THAT(judgement.late, ElementsAre(3));
}

// The first host passes reports on: without it the third isn't to blame.
TEST(JudgeTest, AHostBehindASilentOne) {
  const Judgement judgement = Judge({{"alpha", 9.0, false, {InBucket(0)}},
                                     {"beta", 0.0, false, {InBucket(1)}},
                                     {"gamma", 9.0, true, {InBucket(2)}}});
  EXPECT_THAT(judgement.late, ElementsAre(0));
  EXPECT_EQ(judgement.text,
            "host alpha (rank 0) doesn't answer since 9 s; rank 1 waits in "
            "all-reduce 812 of bucket 3 (25.0 MiB); what rank 2 does can't be "
            "seen from here");
}

TEST(JudgeTest, ARankWhoseMemoryCantBeOpened) {
  RankView unseen = Computing(1);
  unseen.pid = 0;
  const Judgement judgement =
      Judge(OneHost({InBucket(0), unseen, InBucket(2)}));
  EXPECT_THAT(judgement.late, IsEmpty());
  EXPECT_THAT(judgement.text, HasSubstr("what rank 1 does can't be seen"));
}

TEST(JudgeTest, ActivitiesThatAreNoStep) {
  RankView saving = Computing(0);
  Set("saving", saving.activity);
  EXPECT_THAT(Judge(OneHost({saving})).text,
              HasSubstr("in saving after step 13 for 22 s"));
  Set("set-up", saving.activity);
  saving.step = 0;
  EXPECT_THAT(Judge(OneHost({saving})).text, HasSubstr("in set-up for 22 s"));
}

TEST(OverdueTest, TheOneThatExceedsItsLimitByMost) {
  RankView calm = Computing(0);
  calm.alarm = false;
  EXPECT_EQ(Overdue(OneHost({calm})), "");
  EXPECT_EQ(Overdue(OneHost({calm, Computing(1)})),
            "no step for 22 s (limit 20 s)");
  RankView evaluating = Computing(2);
  Set("evaluation", evaluating.activity);
  evaluating.activity_ns = 65 * kSecond;
  EXPECT_EQ(Overdue(OneHost({Computing(1), evaluating})),
            "evaluation takes 65 s (limit 20 s)");
}

TEST(RankListTest, LongRangesAreShort) {
  EXPECT_EQ(RankList({2}), "2");
  EXPECT_EQ(RankList({0, 1, 2}), "0, 1, 2");
  EXPECT_EQ(RankList({0, 1, 2, 3, 7, 9, 10}), "0-3, 7, 9, 10");
}

}  // namespace
}  // namespace capstan
