// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "trainer/metrics/metrics_log.h"

namespace capstan {
namespace {

std::string NewPath() {
  std::string folder = ::testing::TempDir() + "/generations_XXXXXX";
  EXPECT_NE(mkdtemp(&folder[0]), nullptr);
  return folder + "/generations.jsonl";
}

TEST(GenerationsLogTest, AResumedRunKnowsWhatWasBefore) {
  const std::string path = NewPath();
  {
    auto log = GenerationsLog::Open(path, 0);
    ASSERT_TRUE(log.ok()) << log.status();
    EXPECT_FALSE(PathExists(path));  // no prompt, no file
    for (const int64_t step : {0, 5, 10}) {
      ASSERT_TRUE(log->Add(step, {"a\n", std::to_string(step), false}).ok());
      ASSERT_TRUE(log->Add(step, {"b", "\xff", true}).ok());
    }
    EXPECT_EQ(log->Before("a\n"), "0");
  }
  auto log = GenerationsLog::Open(path, 5);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(log->Before("a\n"), "0");
  EXPECT_EQ(log->Before("b"), "\xef\xbf\xbd");
  EXPECT_EQ(log->Before("c"), absl::nullopt);
  ASSERT_TRUE(log->Add(9, {"a\n", "nine", false}).ok());
  EXPECT_EQ(*ReadWholeFile(path),
            "{\"step\":0,\"prompt\":\"a\\n\",\"text\":\"0\"}\n"
            "{\"step\":0,\"prompt\":\"b\",\"text\":\"\xef\xbf\xbd\"}\n"
            "{\"step\":5,\"prompt\":\"a\\n\",\"text\":\"5\"}\n"
            "{\"step\":5,\"prompt\":\"b\",\"text\":\"\xef\xbf\xbd\"}\n"
            "{\"step\":9,\"prompt\":\"a\\n\",\"text\":\"nine\"}\n");
  // A new run starts afresh.
  ASSERT_TRUE(GenerationsLog::Open(path, 0).ok());
  EXPECT_FALSE(PathExists(path));
}

TEST(SideBySideTest, WrapsAtSpacesAndFillsUp) {
  EXPECT_EQ(SideBySide("before", "one two three four five", "now", "a\nb", 35),
            "before           | now\n"
            "---------------- | ----------------\n"
            "one two three    | a\n"
            "four five        | b\n");
}

TEST(SideBySideTest, LongWordsAndCharactersOfSeveralBytes) {
  EXPECT_EQ(SideBySide("b", "abcdefghijklmnopqrstuvwx", "n",
                       "\xc3\xa4\xc3\xb6\xc3\xbc", 35),
            "b                | n\n"
            "---------------- | ----------------\n"
            "abcdefghijklmnop | \xc3\xa4\xc3\xb6\xc3\xbc\n"
            "qrstuvwx         |\n");
  EXPECT_EQ(SideBySide("\xc3\xa4", "", "n", "", 35),
            "\xc3\xa4                | n\n"
            "---------------- | ----------------\n"
            "                 |\n");
}

}  // namespace
}  // namespace capstan
