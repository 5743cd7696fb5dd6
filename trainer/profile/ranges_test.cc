// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/profile.h"
#include "trainer/profile/profiler.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string>& Calls() {
  static auto* const calls = new std::vector<std::string>;
  return *calls;
}

// Turned off at the end, for the other tests.
class RangesTest : public ::testing::Test {
 protected:
  RangesTest() { Calls().clear(); }
  ~RangesTest() override { StartRanges(nullptr, nullptr); }

  static void Start() {
    StartRanges([](const char* name) { Calls().push_back(name); },
                [] { Calls().push_back("pop"); });
  }
};

void Step() {
  const Range step("step", 7);
  const ProfileScope forward("forward");
  const Range unit(std::string("layers.0"));
}

TEST_F(RangesTest, Nest) {
  Start();
  Step();
  EXPECT_THAT(Calls(), ElementsAre("step 7", "forward", "layers.0", "pop",
                                   "pop", "pop"));
}

TEST_F(RangesTest, NothingWithoutStart) {
  Step();
  EXPECT_THAT(Calls(), IsEmpty());
}

// Only scopes of profiled steps are recorded, and those that ranges alone have
// turned on are in nobody's record.
TEST_F(RangesTest, BesideTheProfiler) {
  Start();
  Profiler profiler({2});
  for (int step = 1; step <= 3; ++step) {
    profiler.BeginStep(step, {});
    Step();
    profiler.EndStep({});
  }
  EXPECT_EQ(Calls().size(), 18u);
  ASSERT_EQ(profiler.steps().size(), 1u);
  ASSERT_EQ(profiler.steps()[0].records.size(), 1u);
  EXPECT_STREQ(profiler.steps()[0].records[0].record.name, "forward");
  EXPECT_TRUE(profiler.steps()[0].records[0].record.is_outermost);
}

TEST_F(RangesTest, ProfiledWithoutRanges) {
  Profiler profiler({1});
  profiler.BeginStep(1, {});
  Step();
  profiler.EndStep({});
  EXPECT_THAT(Calls(), IsEmpty());
  EXPECT_EQ(profiler.steps()[0].records.size(), 1u);
}

}  // namespace
}  // namespace capstan
