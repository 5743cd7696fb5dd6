// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/races.h"

#include <gtest/gtest.h>

#include <random>

namespace capstan::standin {
namespace {

const std::string* Name(const std::string& name) {
  return new std::string(name);  // as long as the process
}

// A stream with its clock.
struct Thread {
  int place;
  Clock clock;

  Access Next(const std::string* name) {
    if (clock.size() <= static_cast<size_t>(place)) clock.resize(place + 1, 0);
    return {place, ++clock[place], name};
  }
};

TEST(JoinTest, TakesTheLater) {
  Clock into = {3, 1};
  Join({2, 5, 7}, &into);
  EXPECT_EQ(into, (Clock{3, 5, 7}));
}

TEST(AccessMapTest, ReadsDontConflict) {
  AccessMap map;
  Thread a = {0, {}};
  Thread b = {1, {}};
  const std::string* const name = Name("read");
  EXPECT_TRUE(map.Note(0, 8, Touch::kRead, a.Next(name), a.clock).empty());
  EXPECT_TRUE(map.Note(0, 8, Touch::kRead, b.Next(name), b.clock).empty());
  // Both reads are behind a write that is ordered with one of them.
  Join(b.clock, &a.clock);
  EXPECT_TRUE(map.Note(0, 8, Touch::kWrite, a.Next(name), a.clock).empty());
}

TEST(AccessMapTest, FindsTheBytesThatOverlap) {
  AccessMap map;
  Thread a = {0, {}};
  Thread b = {1, {}};
  const std::string* const write = Name("write");
  const std::string* const read = Name("read");
  EXPECT_TRUE(
      map.Note(100, 200, Touch::kWrite, a.Next(write), a.clock).empty());
  EXPECT_TRUE(map.Note(0, 100, Touch::kWrite, b.Next(write), b.clock).empty());
  EXPECT_TRUE(map.Note(200, 300, Touch::kRead, b.Next(read), b.clock).empty());
  const auto conflicts =
      map.Note(199, 201, Touch::kRead, b.Next(read), b.clock);
  ASSERT_EQ(conflicts.size(), 1u);
  EXPECT_EQ(conflicts[0].address, 199u);
  EXPECT_EQ(conflicts[0].earlier.stream, 0);
  EXPECT_EQ(conflicts[0].earlier_touch, Touch::kWrite);
}

TEST(AccessMapTest, FreedBytesAreForNobody) {
  AccessMap map;
  Thread a = {0, {}};
  const std::string* const name = Name("work");
  EXPECT_TRUE(map.Note(0, 64, Touch::kAllocate, a.Next(name), a.clock).empty());
  EXPECT_TRUE(map.Note(0, 64, Touch::kFree, a.Next(name), a.clock).empty());
  const auto conflicts = map.Note(8, 16, Touch::kRead, a.Next(name), a.clock);
  ASSERT_EQ(conflicts.size(), 1u);
  EXPECT_TRUE(conflicts[0].freed);
  EXPECT_TRUE(map.Note(0, 64, Touch::kAllocate, a.Next(name), a.clock).empty());
  EXPECT_TRUE(map.Note(8, 16, Touch::kRead, a.Next(name), a.clock).empty());
}

// Against the definition: all earlier accesses to each byte are kept.
TEST(AccessMapTest, AgreesWithKeepingEverything) {
  constexpr int kBytes = 24;
  constexpr int kStreams = 4;
  struct Kept {
    Access access;
    bool write;
  };
  int found = 0;
  for (int seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    AccessMap map;
    std::vector<Thread> streams;
    for (int i = 0; i < kStreams; ++i) streams.push_back({i, {}});
    std::vector<std::vector<Kept>> kept(kBytes);
    for (int step = 0; step < 60; ++step) {
      Thread& stream = streams[random() % kStreams];
      if (random() % 3 == 0) {  // an event of another
        Join(streams[random() % kStreams].clock, &stream.clock);
        continue;
      }
      const int begin = static_cast<int>(random() % kBytes);
      const int end = begin + 1 + static_cast<int>(random() % (kBytes - begin));
      const bool write = random() % 3 == 0;
      const Access access = stream.Next(Name("x"));
      bool race = false;
      for (int byte = begin; byte < end; ++byte) {
        for (const Kept& other : kept[byte]) {
          const bool ordered =
              static_cast<size_t>(other.access.stream) < stream.clock.size() &&
              stream.clock[other.access.stream] >= other.access.time;
          race = race || ((write || other.write) && !ordered);
        }
        kept[byte].push_back({access, write});
      }
      const bool reported =
          !map.Note(begin, end, write ? Touch::kWrite : Touch::kRead, access,
                    stream.clock)
               .empty();
      // After the first race the map keeps one side of it alone.
      ASSERT_EQ(reported, race) << "seed " << seed << ", step " << step;
      if (race) {
        ++found;
        break;
      }
    }
  }
  EXPECT_GT(found, 50);
}

}  // namespace
}  // namespace capstan::standin
