// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/held_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cluster/launch/launcher.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class HeldFolderTest : public ::testing::Test {
 protected:
  HeldFolderTest() {
    const std::string root =
        ::testing::TempDir() + "/" +
        ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root);
    folder_ = (fs::path(root) / "run").lexically_normal().string();
    fs::create_directories(folder_);
    held_ = Hold().value();
  }
  // A second file description: as another process's.
  absl::StatusOr<HeldFolder> Hold() {
    return HoldFolder(folder_, "", std::chrono::milliseconds(0));
  }
  std::string Said(const FolderNow& now) {
    return std::string(now.status.message());
  }

  std::string folder_;
  HeldFolder held_;
};

TEST_F(HeldFolderTest, IsWhereItWas) {
  const FolderNow now = LookAtFolder(&held_);
  EXPECT_TRUE(now.status.ok()) << now.status;
  EXPECT_EQ(now.where, "");
  HeldFolder none;
  EXPECT_TRUE(LookAtFolder(&none).status.ok());
}

// Each in a process of its own, as nothing takes the signal back.
TEST_F(HeldFolderTest, AStopEndsTheWaitForAnothersLock) {
  EXPECT_EXIT(
      {
        std::thread stop([] {
          usleep(300000);  // sleeps: a stop that comes later
          AdoptStop(SIGTERM);
        });
        const absl::Status status =
            HoldFolder(folder_, "", std::chrono::seconds(20)).status();
        _exit(absl::IsCancelled(status) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(HeldFolderTest, ARunThatStopsAnywayWaitsForTheLock) {
  EXPECT_EXIT(
      {
        AdoptStop(SIGTERM);
        const absl::Status status =
            HoldFolder(folder_, "", std::chrono::milliseconds(200)).status();
        _exit(absl::IsFailedPrecondition(status) ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(HeldFolderTest, IsFoundWhereItWasMoved) {
  const std::string moved = folder_ + "2";
  fs::rename(folder_, moved);
  for (const bool another : {false, true}) {
    // Another run's, which has made it anew.
    if (another) fs::create_directories(folder_);
    const FolderNow now = LookAtFolder(&held_);
    EXPECT_THAT(Said(now),
                HasSubstr(folder_ + " was moved to " + moved + " while"));
    EXPECT_EQ(now.where, moved);
  }
  EXPECT_TRUE(Hold().ok());
  EXPECT_EQ(LookAtFolder(&held_).where, moved);
  fs::rename(moved, folder_ + "3");
  EXPECT_EQ(LookAtFolder(&held_).where, folder_ + "3");
}

TEST_F(HeldFolderTest, IsNowhereOnceDeleted) {
  fs::remove_all(folder_);
  for (const bool another : {false, true}) {
    if (another) fs::create_directories(folder_);
    const FolderNow now = LookAtFolder(&held_);
    EXPECT_THAT(Said(now), HasSubstr(folder_ + " was deleted"));
    EXPECT_EQ(now.where, "");
  }
}

TEST_F(HeldFolderTest, ALockThatWasRemovedIsTakenAgain) {
  fs::remove(folder_ + "/.lock");
  FolderNow now = LookAtFolder(&held_);
  EXPECT_THAT(Said(now), HasSubstr("has lost its file .lock"));
  EXPECT_EQ(now.where, folder_);
  EXPECT_FALSE(Hold().ok());
  EXPECT_TRUE(LookAtFolder(&held_).status.ok());
  // In a folder that was moved, too.
  fs::remove(folder_ + "/.lock");
  fs::rename(folder_, folder_ + "2");
  EXPECT_EQ(LookAtFolder(&held_).where, folder_ + "2");
}

TEST_F(HeldFolderTest, ALockThatAnotherRunHasIsItsOwn) {
  fs::remove(folder_ + "/.lock");
  ASSERT_TRUE(Hold().ok());
  const FolderNow now = LookAtFolder(&held_);
  EXPECT_THAT(Said(now), AllOf(HasSubstr("another run has it now (host "),
                               HasSubstr(absl::StrCat("process ", getpid()))));
  EXPECT_EQ(now.where, "");
}

}  // namespace
}  // namespace capstan
