// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/side_thread.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace capstan::grpo {
namespace {

absl::Status TakeFrom(SideThread* side) {
  while (!side->Ended()) {
  }
  return side->Take();
}

TEST(SideThreadTest, ReturnsAndThrowsWhatItsWorkDoes) {
  SideThread side;
  std::thread::id first, second;
  side.Begin([&first] {
    first = std::this_thread::get_id();
    return absl::OkStatus();
  });
  EXPECT_TRUE(TakeFrom(&side).ok());
  side.Begin([&second] {
    second = std::this_thread::get_id();
    return absl::NotFoundError("none");
  });
  EXPECT_EQ(TakeFrom(&side), absl::NotFoundError("none"));
  EXPECT_EQ(first, second);
  EXPECT_NE(first, std::this_thread::get_id());
  side.Begin([]() -> absl::Status { throw std::runtime_error("dead"); });
  EXPECT_THROW(TakeFrom(&side), std::runtime_error);
  side.Begin([] { return absl::OkStatus(); });
  EXPECT_TRUE(TakeFrom(&side).ok());
}

// The work goes on alone, with what it owns.
TEST(SideThreadTest, CanBeLeftWhileItWaits) {
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    bool passed = false;
  };
  const auto gate = std::make_shared<Gate>();
  {
    SideThread side;
    side.Begin([gate] {
      std::unique_lock<std::mutex> lock(gate->mutex);
      gate->changed.wait(lock, [&] { return gate->open; });
      gate->passed = true;
      gate->changed.notify_all();
      return absl::OkStatus();
    });
    EXPECT_FALSE(side.Ended());
  }
  std::unique_lock<std::mutex> lock(gate->mutex);
  gate->open = true;
  gate->changed.notify_all();
  gate->changed.wait(lock, [&] { return gate->passed; });
}

}  // namespace
}  // namespace capstan::grpo
