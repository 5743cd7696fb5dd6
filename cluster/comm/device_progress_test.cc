// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/device_progress.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/collective_label.h"
#include "cluster/watch/rank_view.h"

namespace capstan {
namespace {

// A collective that the test begins and ends.
struct Made {
  std::atomic<bool> started{false}, ended{false}, lost{false};
};
class MadeWork : public DeviceWork {
 public:
  explicit MadeWork(std::shared_ptr<Made> made) : made_(std::move(made)) {}
  bool Started() override {
    TORCH_CHECK(!made_->lost, "the device is lost");
    return made_->started;
  }
  bool Ended() override { return made_->ended; }

 private:
  const std::shared_ptr<Made> made_;
};

class GroupProgressTest : public ::testing::Test {
 protected:
  // One group of the ledger for all tests, whose number is limited.
  static const CollectiveLog& Log() {
    static const auto* const log =
        new CollectiveLog(/*sees_ends=*/true, /*in_order=*/true);
    return *log;
  }
  static GroupView Seen() { return ViewOf(OwnSlot(), LedgerNow()).groups[0]; }

  std::shared_ptr<Made> Issue(const char* name) {
    auto made = std::make_shared<Made>();
    progress_->Issued(progress_->Entered(name, 1000),
                      std::make_unique<MadeWork>(made));
    return made;
  }

  std::atomic<bool> failed_{false};
  const std::shared_ptr<GroupProgress> progress_ =
      std::make_shared<GroupProgress>(Log(), [this] { return failed_.load(); });
};

TEST_F(GroupProgressTest, IsLoggedAsTheDeviceComesToIt) {
  const auto first = Issue("all-gather");
  std::shared_ptr<Made> second;
  {
    const CollectiveLabel label("bucket", 3);
    second = Issue("all-reduce");
  }
  progress_->Look();
  EXPECT_FALSE(Seen().waits());
  first->started = true;
  progress_->Look();
  ASSERT_TRUE(Seen().waits());
  EXPECT_EQ(std::string(Seen().current.name), "all-gather");
  // Both in one look.
  first->ended = second->started = true;
  progress_->Look();
  ASSERT_TRUE(Seen().waits());
  EXPECT_EQ(std::string(Seen().current.name), "all-reduce");
  EXPECT_EQ(std::string(Seen().current.label), "bucket 3");
  second->ended = true;
  progress_->Look();
  EXPECT_FALSE(Seen().waits());
}

// More than the ledger keeps.
TEST_F(GroupProgressTest, TheOneUnderWayIsSeenHoweverFarTheHostIsAhead) {
  const auto first = Issue("all-gather");
  first->started = true;
  for (int i = 0; i < 1000; ++i) Issue("all-reduce");
  progress_->Look();
  ASSERT_TRUE(Seen().waits());
  EXPECT_EQ(std::string(Seen().current.name), "all-gather");
}

TEST_F(GroupProgressTest, WhatIsNotFollowedHoldsUpNothing) {
  progress_->Issued(progress_->Entered("broadcast", 8), nullptr);
  const auto next = Issue("all-gather");
  next->started = true;
  progress_->Look();
  ASSERT_TRUE(Seen().waits());
  EXPECT_EQ(std::string(Seen().current.name), "all-gather");
}

// NCCL connects in a communicator's first collective.
TEST_F(GroupProgressTest, AHostThatBlocksIsInTheCollective) {
  const auto first = Issue("all-gather");
  const uint64_t number = progress_->Entered("broadcast", 8);
  const uint64_t before = Seen().issued;
  progress_->Look();
  EXPECT_EQ(Seen().issued, before);
  first->started = first->ended = true;
  progress_->Look();
  ASSERT_TRUE(Seen().waits());
  EXPECT_EQ(std::string(Seen().current.name), "broadcast");
  auto second = std::make_shared<Made>();
  progress_->Issued(number, std::make_unique<MadeWork>(second));
  progress_->Look();
  EXPECT_TRUE(Seen().waits());
  second->started = second->ended = true;
  progress_->Look();
  EXPECT_FALSE(Seen().waits());
  EXPECT_EQ(Seen().issued, before + 2);
}

// A thread that hasn't looked for long; numbers are the same on all ranks.
TEST_F(GroupProgressTest, WhatIsTooMuchToFollowCounts) {
  const uint64_t before = Seen().issued;
  std::vector<std::shared_ptr<Made>> all;
  for (int i = 0; i < 5000; ++i) all.push_back(Issue("all-reduce"));
  for (const auto& made : all) made->started = made->ended = true;
  progress_->Look();
  EXPECT_FALSE(Seen().waits());
  EXPECT_EQ(Seen().issued, before + 5000);
  const auto next = Issue("all-gather");
  next->started = true;
  progress_->Look();
  ASSERT_TRUE(Seen().waits());
  EXPECT_EQ(std::string(Seen().current.name), "all-gather");
  EXPECT_EQ(Seen().current.number, before + 5001);
}

TEST_F(GroupProgressTest, WhatAFailedGroupEndsIsNotDone) {
  Issue("all-reduce")->started = true;
  const auto second = Issue("all-gather");
  EXPECT_EQ(progress_->Failed(), "");
  progress_->Look();
  failed_ = true;
  second->ended = true;
  progress_->Look();
  EXPECT_TRUE(Seen().waits());
  EXPECT_EQ(progress_->Failed(), "all-reduce 1 (1000 bytes)");
}

TEST_F(GroupProgressTest, AThreadLooks) {
  ProgressThread thread;
  thread.Add(progress_);
  const auto first = Issue("broadcast");
  first->started = true;
  const auto limit =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while ((!Seen().waits() || std::string(Seen().current.name) != "broadcast") &&
         std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(std::string(Seen().current.name), "broadcast");
  // A lost device ends it, quietly.
  Issue("broadcast")->lost = true;
  first->ended = true;
}

}  // namespace
}  // namespace capstan
