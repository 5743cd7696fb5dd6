// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/ledger.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/collective_label.h"
#include "cluster/watch/collective_log.h"
#include "cluster/watch/process_state.h"
#include "cluster/watch/rank_view.h"

namespace capstan {
namespace {

TEST(LedgerTextTest, IsCutOff) {
  LedgerText<16> text;
  text.Set("");
  EXPECT_EQ(text.Get(), "");
  text.Set("backward");
  EXPECT_EQ(text.Get(), "backward");
  text.Set("a text that is too long");
  EXPECT_EQ(text.Get(), "a text that is t");
}

TEST(LedgerSegmentTest, IsSharedWithAnotherProcess) {
  auto segment = LedgerSegment::Create(3);
  ASSERT_TRUE(segment.ok()) << segment.status();
  const std::string address = (*segment)->address();
  const pid_t child = fork();
  if (child == 0) {
    auto opened = LedgerSegment::Open(address, 3);
    if (!opened.ok()) _exit(1);
    (*opened)->slot(2).phase.Set("forward");
    (*opened)->slot(2).step = 13;
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ((*segment)->slot(2).phase.Get(), "forward");
  EXPECT_EQ((*segment)->slot(2).step, 13);
  EXPECT_EQ((*segment)->slot(1).step, 0);
}

TEST(LedgerSegmentTest, AnAddressOfSomethingElse) {
  auto segment = LedgerSegment::Create(1);
  ASSERT_TRUE(segment.ok());
  const std::string address = (*segment)->address();
  EXPECT_FALSE(LedgerSegment::Open(address, 2).ok()) << "another size";
  EXPECT_FALSE(LedgerSegment::Open(address + "1", 1).ok()) << "another nonce";
  EXPECT_FALSE(LedgerSegment::Open("", 1).ok());
  EXPECT_FALSE(LedgerSegment::Open("1 2", 1).ok());
  segment->reset();
  EXPECT_FALSE(LedgerSegment::Open(address, 1).ok()) << "it is closed";
}

// The only test here that makes groups, whose number is limited.
TEST(CollectiveLogTest, RecordsWhatIsUnderWay) {
  const CollectiveLog log(/*sees_ends=*/true);
  const auto seen = [] { return ViewOf(OwnSlot(), LedgerNow()).groups[0]; };
  EXPECT_FALSE(seen().waits());
  uint64_t first = 0;
  {
    const CollectiveLabel outer("layers.7");
    first = log.Issued("all-gather", 1000);
    const CollectiveLabel label("bucket", 3);
    log.Issued("all-reduce", 25 << 20);
  }
  EXPECT_EQ(CollectiveLabel::Current(), "");
  EXPECT_FALSE(seen().waits()) << "nothing has begun";
  log.Started(first);
  ASSERT_TRUE(seen().waits());
  EXPECT_EQ(std::string(seen().current.name), "all-gather");
  EXPECT_EQ(std::string(seen().current.label), "layers.7");
  EXPECT_EQ(seen().current.bytes, 1000);
  EXPECT_EQ(seen().issued, first + 1);
  log.Finished(first);
  EXPECT_FALSE(seen().waits());
  log.Started(first + 1);
  EXPECT_EQ(std::string(seen().current.label), "bucket 3");
  EXPECT_EQ(seen().current.number, first + 1);
  log.Finished(first + 1);
  EXPECT_FALSE(seen().waits());

  // After an error those that were queued never begin.
  log.Issued("all-gather", 7);
  const uint64_t next = log.Issued("all-reduce", 8);
  log.Started(next);
  log.Finished(next);
  EXPECT_FALSE(seen().waits());
  OwnSlot().groups[0].in_order = 0;
  EXPECT_TRUE(seen().waits()) << "as if it had begun";
  log.Finished(next - 1);

  // Gloo's may end in another order.
  const uint64_t slow = log.Issued("all-gather", 5);
  const uint64_t fast = log.Issued("all-reduce", 6);
  log.Started(slow);
  log.Started(fast);
  log.Finished(fast);
  EXPECT_EQ(seen().current.number, slow);
  log.Finished(slow);
  EXPECT_FALSE(seen().waits());

  // Its cost, for the log; generous, as the machine may be busy.
  constexpr int kTimes = 100000;
  const CollectiveLabel label("bucket", 3);
  const int64_t begin = MonotonicNanoseconds();
  for (int i = 0; i < kTimes; ++i) {
    const uint64_t number = log.Issued("all-reduce", 1);
    log.Started(number);
    log.Finished(number);
  }
  const int64_t each = (MonotonicNanoseconds() - begin) / kTimes;
  std::cout << each << " ns a collective\n";
  RecordProperty("nanoseconds_a_collective", static_cast<int>(each));
  EXPECT_LT(each, 20000);

  // A reader never sees the texts of one with the number of another.
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int i = 0; !stop; ++i) {
      const CollectiveLabel mine(i % 2 == 0 ? "even" : "odd");
      const uint64_t number = log.Issued(i % 2 == 0 ? "even" : "odd", i % 2);
      log.Started(number);
      log.Finished(number);
    }
  });
  for (int i = 0; i < 100000; ++i) {
    const CollectiveView view = seen().current;
    if (view.number == 0 || view.number <= fast + kTimes) continue;
    EXPECT_EQ(std::string(view.name), view.bytes == 0 ? "even" : "odd");
    EXPECT_EQ(std::string(view.label), view.bytes == 0 ? "even" : "odd");
  }
  stop = true;
  writer.join();
}

TEST(CollectiveLabelTest, IsCutOff) {
  const CollectiveLabel label(std::string(100, 'x'), 7);
  EXPECT_EQ(CollectiveLabel::Current(), std::string(40, 'x'));
}

TEST(HostReportTest, TravelsAsBytes) {
  HostReport report;
  report.count = 7;
  report.ending = true;
  report.ranks.resize(2);
  report.ranks[1].rank = 5;
  report.ranks[1].step = 13;
  std::string bytes = Encode(report);
  const auto parsed = ParseHostReport(bytes, 2);
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ(parsed->count, 7u);
  EXPECT_TRUE(parsed->ending);
  EXPECT_EQ(parsed->ranks[1].rank, 5);
  EXPECT_EQ(parsed->ranks[1].step, 13);
  EXPECT_FALSE(ParseHostReport(bytes, 3).has_value());
  EXPECT_FALSE(ParseHostReport("", 0).has_value());
  // A text without an end gets one.
  std::string hostile = bytes;
  for (size_t i = 32; i < hostile.size(); ++i) hostile[i] = 'x';
  const auto texts = ParseHostReport(hostile, 2);
  ASSERT_TRUE(texts.has_value());
  EXPECT_LT(std::string(texts->ranks[0].activity).size(), 25u);
  EXPECT_LT(std::string(texts->ranks[1].groups[0].current.label).size(), 41u);
  bytes[0] ^= 1;
  EXPECT_FALSE(ParseHostReport(bytes, 2).has_value());
}

class ChildTest : public ::testing::Test {
 protected:
  void Start(bool spins) {
    child_ = fork();
    if (child_ == 0) {
      while (spins) {
      }
      while (true) pause();
    }
    start_ = LookAtProcess(child_).start_ticks;
  }
  ~ChildTest() override {
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  // After two looks that lie far enough apart on a busy machine, too.
  ProcessState Look() {
    ProcessWatch watch;
    watch.Look(child_, start_, LedgerNow());
    // sleeps: the time between the looks
    usleep(1500 * 1000);
    return watch.Look(child_, start_, LedgerNow());
  }

  pid_t child_ = -1;
  uint64_t start_ = 0;
};

TEST_F(ChildTest, WaitsStopsAndIsGone) {
  Start(/*spins=*/false);
  EXPECT_EQ(Look(), ProcessState::kWaiting);
  kill(child_, SIGSTOP);
  EXPECT_EQ(waitpid(child_, nullptr, WUNTRACED), child_);
  EXPECT_EQ(Look(), ProcessState::kStopped);
  ProcessWatch watch;
  EXPECT_EQ(watch.Look(child_, start_ + 1, LedgerNow()), ProcessState::kGone)
      << "another process of its number";
  kill(child_, SIGKILL);
  siginfo_t ended = {};
  EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child_), &ended, WEXITED | WNOWAIT),
            0);
  EXPECT_EQ(Look(), ProcessState::kGone) << "a zombie";
}

TEST_F(ChildTest, Computes) {
  Start(/*spins=*/true);
  EXPECT_EQ(Look(), ProcessState::kComputing);
}

}  // namespace
}  // namespace capstan
