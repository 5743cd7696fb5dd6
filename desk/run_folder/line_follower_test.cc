// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/line_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LineFollowerTest : public ::testing::Test {
 protected:
  LineFollowerTest() {
    std::string folder = ::testing::TempDir() + "lines_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    path_ = folder + "/lines.jsonl";
  }

  void Write(const std::string& text, std::ios::openmode mode = std::ios::app) {
    std::ofstream(path_, mode | std::ios::out) << text;
  }
  // The new lines; "!" where it began anew.
  std::vector<std::string> Poll(LineFollower* follower) {
    std::vector<std::string> lines;
    follower->Poll(
        [&lines](absl::string_view line, int64_t) { lines.emplace_back(line); },
        [&lines] { lines.emplace_back("!"); });
    return lines;
  }

  std::string path_;
};

TEST_F(LineFollowerTest, OnlyWholeLinesAndEachOnce) {
  LineFollower follower(path_);
  EXPECT_THAT(Poll(&follower), IsEmpty()) << "no file yet";
  Write("a\nbb\nc");
  EXPECT_THAT(Poll(&follower), ElementsAre("a", "bb"));
  EXPECT_THAT(Poll(&follower), IsEmpty());
  Write("c\n\n");
  EXPECT_THAT(Poll(&follower), ElementsAre("cc", ""));
}

// What a resumed run does to its metrics.
TEST_F(LineFollowerTest, AFileThatWasCut) {
  LineFollower follower(path_);
  Write("1\n2\n3\n");
  EXPECT_THAT(Poll(&follower), ElementsAre("1", "2", "3"));
  Write("1\n", std::ios::trunc);
  EXPECT_THAT(Poll(&follower), ElementsAre("!", "1"));
}

TEST_F(LineFollowerTest, AFileThatWasCutAndHasGrownAgain) {
  LineFollower follower(path_);
  Write("1\n2\n3\n");
  EXPECT_THAT(Poll(&follower), ElementsAre("1", "2", "3"));
  Write("1\n2\nx\ny\n", std::ios::trunc);
  EXPECT_THAT(Poll(&follower), ElementsAre("!", "1", "2", "x", "y"));
}

TEST_F(LineFollowerTest, AFileThatWasReplaced) {
  LineFollower follower(path_);
  Write("1\n2\n");
  EXPECT_THAT(Poll(&follower), ElementsAre("1", "2"));
  std::ofstream(path_ + ".new") << "1\n2\n3\n";
  std::filesystem::rename(path_ + ".new", path_);
  EXPECT_THAT(Poll(&follower), ElementsAre("!", "1", "2", "3"));
}

TEST_F(LineFollowerTest, AFileThatVanishesAndComesBack) {
  LineFollower follower(path_);
  Write("1\n");
  EXPECT_THAT(Poll(&follower), ElementsAre("1"));
  std::filesystem::rename(path_, path_ + ".away");
  EXPECT_THAT(Poll(&follower), IsEmpty());
  std::filesystem::rename(path_ + ".away", path_);
  Write("2\n");
  EXPECT_THAT(Poll(&follower), ElementsAre("2"));
}

TEST_F(LineFollowerTest, APieceAtATime) {
  std::string text;
  for (int i = 0; i < 300000; ++i) absl::StrAppend(&text, "line ", i, "\n");
  Write(text);
  LineFollower follower(path_);
  int64_t lines = 0, calls = 0;
  bool more = true;
  while (more) {
    more = follower.Poll(
        [&](absl::string_view line, int64_t offset) {
          ASSERT_EQ(line, absl::StrCat("line ", lines));
          ASSERT_EQ(text.compare(offset, line.size(), line.data(), line.size()),
                    0);
          ++lines;
        },
        [] { FAIL() << "began anew"; }, /*most_bytes=*/1 << 20);
    ++calls;
  }
  EXPECT_EQ(lines, 300000);
  EXPECT_GE(calls, 2);
}

TEST_F(LineFollowerTest, ALineThatIsTooLongIsPassedOver) {
  LineFollower follower(path_);
  Write("a\n" + std::string(LineFollower::kLongestLine + (4 << 20), 'x'));
  EXPECT_THAT(Poll(&follower), ElementsAre("a"));
  Write("x\nb\n");
  EXPECT_THAT(Poll(&follower), ElementsAre("b"));
}

TEST_F(LineFollowerTest, AFolderHasNoLines) {
  std::filesystem::create_directory(path_);
  LineFollower follower(path_);
  EXPECT_THAT(Poll(&follower), IsEmpty());
}

}  // namespace
}  // namespace capstan
