// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/profiler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "cluster/comm/single_group.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;

// Profiles one step around `body`.
template <typename Body>
std::vector<ThreadRecord> Profiled(const Body& body) {
  Profiler profiler({7});
  profiler.BeginStep(7, CommunicationStats());
  body();
  profiler.EndStep(CommunicationStats());
  EXPECT_EQ(profiler.steps().size(), 1);
  return profiler.steps()[0].records;
}

std::vector<std::string> Names(const std::vector<ThreadRecord>& records) {
  std::vector<std::string> names;
  for (const ThreadRecord& r : records) names.push_back(r.record.name);
  return names;
}

int64_t Whole(const ThreadRecord& r) {
  return r.record.end_ns - r.record.begin_ns;
}

void Spend(int microseconds) {
  const int64_t end = MonotonicNanoseconds() + 1000 * microseconds;
  while (MonotonicNanoseconds() < end) {
  }
}

TEST(ProfilerTest, OwnTimeLeavesOutWhatIsWithin) {
  const auto records = Profiled([] {
    const ProfileScope outer("outer");
    Spend(300);
    for (int i = 0; i < 2; ++i) {
      const ProfileScope middle("middle");
      Spend(100);
      const ProfileScope inner("inner");
      Spend(200);
    }
  });
  ASSERT_THAT(Names(records),
              ElementsAre("inner", "middle", "inner", "middle", "outer"));
  for (const ThreadRecord& r : records) {
    EXPECT_STREQ(r.record.outermost, "outer");
    EXPECT_EQ(r.role, ThreadRole::kTraining);
  }
  for (const int middle : {1, 3}) {
    EXPECT_EQ(records[middle].record.own_ns,
              Whole(records[middle]) - Whole(records[middle - 1]));
    EXPECT_GE(records[middle].record.own_ns, 100'000);
    EXPECT_EQ(records[middle - 1].record.own_ns, Whole(records[middle - 1]));
    EXPECT_FALSE(records[middle].record.is_outermost);
  }
  EXPECT_EQ(records[4].record.own_ns,
            Whole(records[4]) - Whole(records[1]) - Whole(records[3]));
  EXPECT_GE(records[4].record.own_ns, 300'000);
  EXPECT_TRUE(records[4].record.is_outermost);
}

TEST(ProfilerTest, RecordsOnlyTheStepsThatAreAskedFor) {
  Profiler profiler({2, 4});
  for (int step = 1; step <= 5; ++step) {
    profiler.BeginStep(step, CommunicationStats());
    { const ProfileScope scope(step == 2 ? "two" : "another"); }
    profiler.EndStep(CommunicationStats());
    { const ProfileScope scope("between steps"); }
  }
  ASSERT_EQ(profiler.steps().size(), 2);
  EXPECT_EQ(profiler.steps()[0].step, 2);
  EXPECT_THAT(Names(profiler.steps()[0].records), ElementsAre("two"));
  EXPECT_EQ(profiler.steps()[1].step, 4);
  EXPECT_THAT(Names(profiler.steps()[1].records), ElementsAre("another"));
}

TEST(ProfilerTest, NothingIsRecordedWhenItIsOff) {
  ThreadRecords::Mine().Take();
  { const ProfileScope scope("without a profiler"); }
  {
    Profiler profiler({3});
    { const ProfileScope scope("before"); }
    profiler.BeginStep(3, CommunicationStats());  // and no end
  }
  { const ProfileScope scope("after"); }
  EXPECT_TRUE(ThreadRecords::Mine().Take().empty());
}

TEST(ProfilerTest, AScopeThatBeganBeforeIsNoneOfTheStep) {
  Profiler profiler({1});
  {
    const ProfileScope before("before");
    profiler.BeginStep(1, CommunicationStats());
    const ProfileScope within("within");
  }
  profiler.EndStep(CommunicationStats());
  const auto& records = profiler.steps()[0].records;
  ASSERT_THAT(Names(records), ElementsAre("within"));
  EXPECT_TRUE(records[0].record.is_outermost);
}

TEST(ProfilerTest, ManyScopesOfManyThreads) {
  constexpr int kThreads = 3, kScopes = 5000;  // some chunks each
  const auto records = Profiled([] {
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([] {
        for (int j = 0; j < kScopes; ++j) const ProfileScope scope("work");
      });
    }
    for (int j = 0; j < kScopes; ++j) const ProfileScope scope("mine");
    for (std::thread& thread : threads) thread.join();
  });
  ASSERT_EQ(records.size(), (kThreads + 1) * kScopes);
  int others = 0;
  for (const ThreadRecord& r : records) {
    const bool other = std::string(r.record.name) == "work";
    EXPECT_EQ(r.role, other ? ThreadRole::kOther : ThreadRole::kTraining);
    others += other ? 1 : 0;
  }
  EXPECT_EQ(others, kThreads * kScopes);
}

// Threads that run across step boundaries: only scopes that span one are lost,
// and nothing is recorded twice. Also for the thread sanitizer.
TEST(ProfilerTest, ThreadsGoOnBetweenSteps) {
  std::atomic<bool> stop{false};
  std::thread thread([&stop] {
    while (!stop) const ProfileScope scope("endless");
  });
  std::set<int64_t> steps;
  for (int64_t step = 1; step <= 20; ++step) steps.insert(step);
  Profiler profiler(steps);
  for (const int64_t step : steps) {
    profiler.BeginStep(step, CommunicationStats());
    Spend(500);
    profiler.EndStep(CommunicationStats());
  }
  stop = true;
  thread.join();
  int64_t last = 0;
  for (const ProfiledStep& step : profiler.steps()) {
    for (const ThreadRecord& r : step.records) {
      EXPECT_GE(r.record.begin_ns, last);
      EXPECT_GE(r.record.begin_ns, step.begin_ns);
      last = r.record.end_ns;
    }
  }
  EXPECT_GT(last, 0);
}

// On the CPU autograd runs a graph on the calling thread.
TEST(ProfilerTest, BackwardOfTheCpuIsOnTheTrainingThread) {
  const auto records = Profiled([] {
    const at::Tensor x = at::ones({3}).set_requires_grad(true);
    const at::Tensor y = (x * x).sum();
    x.register_hook([](const at::Tensor& g) {
      const ProfileScope scope("kernel");
      return g;
    });
    const ProfileScope scope(kBackwardPhase);
    torch::autograd::backward({y});
  });
  ASSERT_THAT(Names(records), ElementsAre("kernel", kBackwardPhase));
  EXPECT_EQ(records[0].role, ThreadRole::kTraining);
  EXPECT_STREQ(records[0].record.outermost, kBackwardPhase);
}

// Like a GPU's autograd thread.
TEST(ProfilerTest, AThreadThatRunsBackwardIsAutograds) {
  const auto records = Profiled([] {
    std::thread thread([] {
      const at::Tensor x = at::ones({3}).set_requires_grad(true);
      const at::Tensor y = (x * x).sum();
      x.register_hook([](const at::Tensor& g) {
        const ProfileScope scope("kernel");
        return g;
      });
      torch::autograd::backward({y});
    });
    thread.join();
  });
  ASSERT_THAT(Names(records), ElementsAre("kernel"));
  EXPECT_EQ(records[0].role, ThreadRole::kAutograd);
}

TEST(ProfilerTest, WaitsAreScopes) {
  const std::unique_ptr<ProcessGroup> group =
      ProfileWaits(CreateSingleGroup(at::kCPU));
  const auto records = Profiled([&group] {
    const ProfileScope scope(kForwardPhase);
    const at::Tensor x = at::ones({2});
    group->AllReduce(x)->Wait();
    double value = 1.0;
    group->AllReduceHost(absl::MakeSpan(&value, 1));
    (*group->Split(0))->Broadcast(x, 0)->Wait();
  });
  EXPECT_THAT(Names(records), ElementsAre(kExposedPhase, kExposedPhase,
                                          kExposedPhase, kForwardPhase));
}

TEST(ProfilerTest, HiddenIsWhatNoThreadHasWaitedFor) {
  Profiler profiler({1});
  CommunicationStats stats;
  stats.busy_seconds = 5.0;
  stats.exposed_seconds = 2.0;
  profiler.BeginStep(1, stats);
  stats.busy_seconds += 0.75;
  stats.exposed_seconds += 0.25;
  profiler.EndStep(stats);
  EXPECT_DOUBLE_EQ(profiler.steps()[0].hidden_seconds, 0.5);
}

}  // namespace
}  // namespace capstan
