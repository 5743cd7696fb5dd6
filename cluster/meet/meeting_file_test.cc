// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/meeting_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "cluster/meet/meeting_for_test.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MeetingPlace SomePlace() {
  MeetingPlace place;
  place.addresses = {"10.0.0.1", "fd00::1"};
  place.port = 4711;
  place.token = "0123456789abcdef";
  place.host = "n0";
  place.pid = 77;
  return place;
}

TEST(MeetingPlaceTest, Survives) {
  const MeetingPlace place = ParseMeetingPlace(Encode(SomePlace())).value();
  EXPECT_THAT(place.addresses, ElementsAre("10.0.0.1", "fd00::1"));
  EXPECT_EQ(place.port, 4711);
  EXPECT_EQ(place.token, "0123456789abcdef");
  EXPECT_EQ(place.host, "n0");
  EXPECT_EQ(place.pid, 77);
}

TEST(MeetingPlaceTest, PartsOfItAreErrors) {
  const std::string text = Encode(SomePlace());
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_FALSE(ParseMeetingPlace(text.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(ParseMeetingPlace(text + "x").ok());
  EXPECT_FALSE(ParseMeetingPlace(text + std::string(5000, '\n')).ok());
}

TEST(MeetingPlaceTest, AnyTextIsAPlaceOrAnError) {
  std::mt19937 random(1);
  for (int i = 0; i < 5000; ++i) {
    std::string text = Encode(SomePlace());
    for (unsigned changes = random() % 4 + 1; changes > 0; --changes) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    const auto place = ParseMeetingPlace(text);
    if (place.ok()) {
      EXPECT_GT(place->port, 0);
      EXPECT_LT(place->port, 65536);
      EXPECT_FALSE(place->addresses.empty());
    }
  }
}

TEST(MeetingFilePathTest, IsSafeForAnyKeyAndItsOwn) {
  EXPECT_EQ(MeetingFilePath("/out", "slurm-7.0-restart-1"),
            "/out/.meeting-slurm-7.0-restart-1");
  EXPECT_EQ(MeetingFilePath("/out", ""), "/out/.meeting-");
  const std::string slashes = MeetingFilePath("/out", "../a/b");
  EXPECT_EQ(slashes.find('/', 5), std::string::npos) << slashes;
  EXPECT_NE(slashes, MeetingFilePath("/out", "../a_b"));
  const std::string long_key(300, 'k');
  EXPECT_LT(MeetingFilePath("/out", long_key).size(), 120u);
  EXPECT_NE(MeetingFilePath("/out", long_key),
            MeetingFilePath("/out", long_key + "k"));
}

TEST(MeetingFileTest, IsPublishedForThisUserAndRemoved) {
  const std::string folder = TestFolder() + "/made";
  const std::string path = MeetingFilePath(folder, "key");
  EXPECT_TRUE(absl::IsNotFound(ReadMeetingPlace(path).status()));
  {
    const auto file = MeetingFile::Publish(path, SomePlace());
    ASSERT_TRUE(file.ok()) << file.status();
    struct stat info;
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_EQ(ReadMeetingPlace(path).value().port, 4711);
  }
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(MeetingFileTest, ReplacesALeftOverAndLeavesAnothersAlone) {
  const std::string path = MeetingFilePath(TestFolder(), "key");
  std::ofstream(path) << "half a fi";
  EXPECT_FALSE(ReadMeetingPlace(path).ok());
  auto first = MeetingFile::Publish(path, SomePlace());
  ASSERT_TRUE(first.ok()) << first.status();
  MeetingPlace other = SomePlace();
  other.port = 4712;
  auto second = MeetingFile::Publish(path, other);
  ASSERT_TRUE(second.ok()) << second.status();
  first->reset();
  EXPECT_EQ(ReadMeetingPlace(path).value().port, 4712);
  second->reset();
  EXPECT_FALSE(PathExists(path));
}

TEST(MeetingFileTest, WhatOthersMayHaveWrittenIsNotRead) {
  const std::string folder = TestFolder();
  const std::string path = MeetingFilePath(folder, "key");
  const auto file = MeetingFile::Publish(path, SomePlace());
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(chmod(path.c_str(), 0620), 0);
  const absl::Status status = ReadMeetingPlace(path).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("can be written by other users"));
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(ReadMeetingPlace(path).ok());
}

TEST(MeetingFileTest, AnotherUsersIsNotRead) {
  constexpr uid_t kOther = 54321;
  const std::string folder = TestFolder();
  const std::string path = MeetingFilePath(folder, "key");
  const auto file = MeetingFile::Publish(path, SomePlace());
  ASSERT_TRUE(file.ok()) << file.status();
  if (chown(path.c_str(), kOther, -1) != 0) {
    GTEST_SKIP() << "only root can make one, outside of a sandbox";
  }
  const absl::Status status = ReadMeetingPlace(path).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("is of another user (54321)"));
  // As NFS shows root's files.
  ASSERT_EQ(chown(folder.c_str(), kOther, -1), 0);
  EXPECT_TRUE(ReadMeetingPlace(path).ok());
}

TEST(MeetingFileTest, OtherThingsAreNotRead) {
  const std::string folder = TestFolder();
  fs::create_directories(folder + "/.meeting-folder");
  EXPECT_FALSE(ReadMeetingPlace(folder + "/.meeting-folder").ok());
  ASSERT_EQ(mkfifo((folder + "/.meeting-fifo").c_str(), 0600), 0);
  EXPECT_FALSE(ReadMeetingPlace(folder + "/.meeting-fifo").ok());
  std::ofstream(folder + "/.meeting-long") << std::string(1 << 20, 'x');
  EXPECT_FALSE(ReadMeetingPlace(folder + "/.meeting-long").ok());
}

}  // namespace
}  // namespace capstan
