// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/event_log.h"

#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

class EventLogTest : public testing::Test {
 protected:
  EventLogTest() { std::remove(path_.c_str()); }

  std::vector<std::string> Lines() const {
    std::ifstream file(path_);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }

  const std::string path_ =
      testing::TempDir() + "/" +
      testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(EventLogTest, KeysInOrderAndOnlyWhatIsSet) {
  EventLog log(path_);
  ASSERT_TRUE(log.Add({kStartEvent, 0, "a \"run\"\n"}).ok());
  ASSERT_TRUE(log.Add({kSaveEvent, 7, "saved", 0.25, "x1"}).ok());
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 2);
  const Json first = Json::parse(lines[0]);
  std::vector<std::string> keys;
  for (const auto& item : first.items()) keys.push_back(item.key());
  EXPECT_EQ(keys, (std::vector<std::string>{"time", "step", "kind", "text"}));
  EXPECT_EQ(first["text"], "a \"run\"\n");
  // This century, in seconds.
  EXPECT_GT(first["time"].get<double>(), 1.7e9);
  EXPECT_LT(first["time"].get<double>(), 4.2e9);
  const Json second = Json::parse(lines[1]);
  EXPECT_EQ(second["step"], 7);
  EXPECT_EQ(second["seconds"], 0.25);
  EXPECT_EQ(second["id"], "x1");
  EXPECT_GE(second["time"], first["time"]);
}

TEST_F(EventLogTest, GoesOnBehindALineThatADeadProcessLeft) {
  std::ofstream(path_) << "{\"step\": 1}\n{\"step\": 2, \"ki";
  EventLog log(path_);
  ASSERT_TRUE(log.Add({kRestartEvent, 1, "again"}).ok());
  const std::vector<std::string> lines = Lines();
  ASSERT_EQ(lines.size(), 3);
  EXPECT_EQ(lines[1], "{\"step\": 2, \"ki");
  EXPECT_EQ(Json::parse(lines[2])["kind"], "restart");
}

TEST_F(EventLogTest, KnowsItsLastEvent) {
  EventLog log(path_);
  EXPECT_FALSE(log.LastWas(kSkippedEvent, 3));
  ASSERT_TRUE(log.Add({kSkippedEvent, 3, "no update"}).ok());
  EXPECT_TRUE(log.LastWas(kSkippedEvent, 3));
  EXPECT_FALSE(log.LastWas(kSkippedEvent, 4));
}

// Told once, and the run goes on.
TEST_F(EventLogTest, AFileThatCannotBeWrittenIsToldOnce) {
  EventLog log(path_ + "/no/folder/events.jsonl");
  EXPECT_FALSE(log.Add({kStartEvent, 0, "begins"}).ok());
  EXPECT_TRUE(log.Add({kSkippedEvent, 3, "no update"}).ok());
  EXPECT_TRUE(log.LastWas(kSkippedEvent, 3));
}

}  // namespace
}  // namespace capstan
