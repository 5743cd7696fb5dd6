// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/key_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMe = 1;
constexpr uint64_t kOther = 2;

class KeyTableTest : public testing::Test {
 protected:
  struct Ready {
    uint64_t client;
    StoreResponse response;
  };

  std::vector<Ready> TakeReady() { return std::exchange(ready_, {}); }
  // Requests; the response may come at once, or later.
  std::vector<Ready> Request(uint64_t client, StoreVerb verb,
                             std::vector<std::string> keys,
                             std::vector<std::string> values = {},
                             int64_t number = 0, int64_t timeout_ms = 0) {
    StoreRequest request;
    request.id = ++id_;
    request.verb = verb;
    request.keys = std::move(keys);
    request.values = std::move(values);
    request.number = number;
    request.timeout_ms = timeout_ms;
    table_.Handle(client, std::move(request), now_);
    return TakeReady();
  }
  StoreResponse Ask(StoreVerb verb, std::vector<std::string> keys,
                    std::vector<std::string> values = {}, int64_t number = 0) {
    auto ready = Request(kMe, verb, std::move(keys), std::move(values), number);
    EXPECT_EQ(ready.size(), 1u);
    return ready.empty() ? StoreResponse() : ready[0].response;
  }

  std::vector<Ready> ready_;
  KeyTable table_{[this](uint64_t client, const StoreResponse& response) {
    ready_.push_back({client, response});
  }};
  Deadline now_ = MeetingClock::now();
  uint32_t id_ = 0;
};

TEST_F(KeyTableTest, SetsAddsAndDeletes) {
  EXPECT_EQ(Ask(StoreVerb::kSet, {"a"}, {"1"}).result, StoreResult::kOk);
  Ask(StoreVerb::kSet, {"b"}, {""});
  EXPECT_THAT(Ask(StoreVerb::kGet, {"b", "a"}).values, ElementsAre("", "1"));
  Ask(StoreVerb::kSet, {"a"}, {"12"});
  EXPECT_EQ(Ask(StoreVerb::kAdd, {"a"}, {}, -2).number, 10);
  EXPECT_EQ(Ask(StoreVerb::kAdd, {"count"}, {}, 3).number, 3);
  EXPECT_EQ(Ask(StoreVerb::kCount, {}).number, 3);
  EXPECT_EQ(Ask(StoreVerb::kCheck, {"a", "count"}).number, 1);
  EXPECT_EQ(Ask(StoreVerb::kDelete, {"a"}).number, 1);
  EXPECT_EQ(Ask(StoreVerb::kDelete, {"a"}).number, 0);
  EXPECT_EQ(Ask(StoreVerb::kCheck, {"a", "count"}).number, 0);
  EXPECT_EQ(Ask(StoreVerb::kCheck, {}).number, 1);
}

// As c10d::TCPStore.
TEST_F(KeyTableTest, CompareSet) {
  const auto compare_set = [this](const std::string& from,
                                  const std::string& to) {
    return Ask(StoreVerb::kCompareSet, {"k"}, {from, to}).values;
  };
  EXPECT_THAT(compare_set("x", "y"), ElementsAre("x"));
  EXPECT_EQ(Ask(StoreVerb::kCheck, {"k"}).number, 0);
  EXPECT_THAT(compare_set("", "1"), ElementsAre("1"));
  EXPECT_THAT(compare_set("2", "3"), ElementsAre("1"));
  EXPECT_THAT(compare_set("1", "2"), ElementsAre("2"));
}

TEST_F(KeyTableTest, AWaitEndsWithTheLastKey) {
  EXPECT_THAT(Request(kOther, StoreVerb::kGet, {"a", "b", "a"}), IsEmpty());
  const uint32_t wait = id_;
  EXPECT_EQ(Request(kMe, StoreVerb::kSet, {"b"}, {"B"}).size(), 1u);
  const auto ready = Request(kMe, StoreVerb::kSet, {"a"}, {"A"});
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[0].client, kOther);
  EXPECT_EQ(ready[0].response.id, wait);
  EXPECT_THAT(ready[0].response.values, ElementsAre("A", "B", "A"));
  EXPECT_EQ(table_.NextExpiry(), Deadline::max());
}

TEST_F(KeyTableTest, ADeletedKeyIsWaitedForAnew) {
  EXPECT_THAT(Request(kOther, StoreVerb::kGet, {"a", "b"}), IsEmpty());
  Request(kMe, StoreVerb::kSet, {"a"}, {"1"});
  Request(kMe, StoreVerb::kDelete, {"a"});
  EXPECT_EQ(Request(kMe, StoreVerb::kSet, {"b"}, {"2"}).size(), 1u);
  const auto ready = Request(kMe, StoreVerb::kSet, {"a"}, {"3"});
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_THAT(ready[0].response.values, ElementsAre("3", "2"));
}

TEST_F(KeyTableTest, TimeOutsNameWhatIsMissing) {
  Request(kMe, StoreVerb::kSet, {"there"}, {""});
  Request(kMe, StoreVerb::kWait, {"there", "gone", "too"}, {}, 0, 1500);
  Request(kMe, StoreVerb::kWait, {"gone"}, {}, 0, 5000);
  EXPECT_EQ(table_.NextExpiry(), now_ + milliseconds(1500));
  table_.Expire(now_ + milliseconds(1499));
  EXPECT_THAT(TakeReady(), IsEmpty());
  table_.Expire(now_ + milliseconds(1500));
  const auto ready = TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].response.result, StoreResult::kTimedOut);
  EXPECT_EQ(ready[0].response.text,
            "timed out after 1.5 s: nobody has set 'gone' and 1 more");
  // The other is still waiting.
  EXPECT_EQ(Request(kMe, StoreVerb::kSet, {"gone"}, {""}).size(), 2u);
}

TEST_F(KeyTableTest, ALostRankEndsWaits) {
  Request(kMe, StoreVerb::kWait, {"never"});
  table_.EndWaits("rank 3 has left");
  const auto ready = TakeReady();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].response.result, StoreResult::kRankLost);
  EXPECT_EQ(Ask(StoreVerb::kWait, {"never"}).text, "rank 3 has left");
  // What needs no waiting goes on.
  Ask(StoreVerb::kSet, {"a"}, {"1"});
  EXPECT_THAT(Ask(StoreVerb::kGet, {"a"}).values, ElementsAre("1"));
}

TEST_F(KeyTableTest, ForgetsAClient) {
  Request(kOther, StoreVerb::kWait, {"a"});
  Request(kMe, StoreVerb::kWait, {"a"});
  table_.Forget(kOther);
  const auto ready = Request(kMe, StoreVerb::kSet, {"a"}, {"1"});
  ASSERT_EQ(ready.size(), 2u);
  EXPECT_EQ(ready[0].client, kMe);
}

TEST_F(KeyTableTest, RefusesWhatIsTooMuch) {
  Ask(StoreVerb::kSet, {"a"}, {std::string(kMaxValueBytes, 'v')});
  Ask(StoreVerb::kSet, {"b"}, {"v"});
  EXPECT_EQ(Ask(StoreVerb::kGet, {"a"}).result, StoreResult::kOk);
  const StoreResponse both = Ask(StoreVerb::kGet, {"a", "b"});
  EXPECT_EQ(both.result, StoreResult::kRejected);
  EXPECT_THAT(both.text, HasSubstr("at most 16777216 are allowed"));
  Ask(StoreVerb::kSet, {"text"}, {"no number"});
  const StoreResponse sum = Ask(StoreVerb::kAdd, {"text"}, {}, 1);
  EXPECT_EQ(sum.result, StoreResult::kRejected);
  EXPECT_THAT(sum.text, HasSubstr("'text' is no number"));
}

// What a thousand ranks that exchange a text each need.
TEST_F(KeyTableTest, AThousandWaitForAThousand) {
  constexpr int kRanks = 1000;
  std::vector<std::string> keys;
  for (int rank = 0; rank < kRanks; ++rank) keys.push_back(absl::StrCat(rank));
  for (uint64_t client = 0; client < kRanks; ++client) {
    EXPECT_THAT(Request(client, StoreVerb::kGet, keys), IsEmpty());
  }
  size_t responses = 0;
  for (const std::string& key : keys) {
    responses += Request(kMe, StoreVerb::kSet, {key}, {key}).size();
  }
  EXPECT_EQ(responses, 2u * kRanks);
}

}  // namespace
}  // namespace capstan
