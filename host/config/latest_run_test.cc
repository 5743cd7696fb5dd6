// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "host/config/load_config.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

class LatestRunTest : public ::testing::Test {
 protected:
  LatestRunTest()
      : runs_((fs::path(::testing::TempDir()) /
               ::testing::UnitTest::GetInstance()->current_test_info()->name())
                  .string()) {
    fs::remove_all(runs_);
    for (const char* name : {"one", "two"}) {
      fs::create_directories(runs_ + "/" + name + "/final");
      std::ofstream(runs_ + "/" + name + "/summary.json") << name;
    }
  }

  const std::string runs_;
};

TEST_F(LatestRunTest, StandsForTheRunAnywhereInAPath) {
  ASSERT_TRUE(SetLatestRun(runs_, "one").ok());
  EXPECT_TRUE(fs::is_regular_file(runs_ + "/latest"));
  EXPECT_EQ(FollowLatestRun(runs_ + "/latest"), runs_ + "/one");
  EXPECT_EQ(FollowLatestRun(runs_ + "/latest/final"), runs_ + "/one/final");
  EXPECT_EQ(FollowLatestRun(runs_ + "/latest/not/there"),
            runs_ + "/one/not/there");
  ASSERT_TRUE(SetLatestRun(runs_, "two").ok());
  EXPECT_EQ(FollowLatestRun(runs_ + "/latest"), runs_ + "/two");
  EXPECT_EQ(FollowLatestRun(runs_ + "/one"), runs_ + "/one");
}

TEST_F(LatestRunTest, OtherFilesOfThatNameAreLeftAlone) {
  const std::string path = runs_ + "/latest";
  EXPECT_EQ(FollowLatestRun(path), path) << "there is none";
  for (const char* text : {"", "..", "../one", "/", "gone", "a text\n"}) {
    std::ofstream(path) << text;
    EXPECT_EQ(FollowLatestRun(path), path) << text;
  }
}

TEST_F(LatestRunTest, ARunInItsOwnFolderIsTheLatestThere) {
  std::ofstream(runs_ + "/one/config.pbtxt") << "name: \"a\"";
  EXPECT_EQ(FollowLatestRun(runs_ + "/one/latest/final"), runs_ + "/one/final");
  EXPECT_EQ(FollowLatestRun(runs_ + "/two/latest"), runs_ + "/two/latest");
}

TEST_F(LatestRunTest, AFolderInTheWayIsAnErrorThatNamesIt) {
  fs::create_directories(runs_ + "/latest/mine");
  const absl::Status status = SetLatestRun(runs_, "one");
  EXPECT_EQ(std::string(status.message())
                .rfind(runs_ + "/latest can't be written: ", 0),
            0)
      << status;
  EXPECT_TRUE(fs::exists(runs_ + "/latest/mine"));
}

// What any reader sees that goes through folders and follows links, as
// TensorBoard does: each run once.
TEST_F(LatestRunTest, AWalkThatFollowsLinksSeesEachRunOnce) {
  ASSERT_TRUE(SetLatestRun(runs_, "two").ok());
  int seen = 0;
  for (const auto& entry : fs::recursive_directory_iterator(
           runs_, fs::directory_options::follow_directory_symlink)) {
    seen += entry.path().filename() == "summary.json" ? 1 : 0;
  }
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace capstan
