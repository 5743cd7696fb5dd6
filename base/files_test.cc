// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "base/crc32c.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

std::string NewFolder() {
  std::string path = ::testing::TempDir() + "/file_util_XXXXXX";
  EXPECT_NE(mkdtemp(&path[0]), nullptr);
  return path;
}

TEST(FileUtilTest, CrcIsTheStandardOne) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
  // RFC 3720, B.4: 32 bytes of zeros.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
}

TEST(FileUtilTest, ReadsInPlaces) {
  std::string bytes((4 << 20) + 12345, 'a');  // more than one piece
  bytes[4 << 20] = 'b';
  const std::string path = NewFolder() + "/large";
  ASSERT_TRUE(WriteWholeFile(path, bytes).ok());
  EXPECT_EQ(*ReadWholeFile(path), bytes);
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Bytes().value(), bytes.size());
  std::string read(100, '.');
  ASSERT_TRUE((*file)->ReadAt((4 << 20) - 50, 100, &read[0]).ok());
  EXPECT_EQ(read, bytes.substr((4 << 20) - 50, 100));
  const absl::Status status = (*file)->ReadAt(bytes.size() - 99, 100, &read[0]);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": ends at"));
}

TEST(FileUtilTest, ErrorsNameThePath) {
  const std::string path = NewFolder() + "/none/x";
  EXPECT_THAT(std::string(ReadWholeFile(path).status().message()),
              HasSubstr(path));
  EXPECT_TRUE(absl::IsNotFound(InputFile::Open(path).status()));
  EXPECT_THAT(std::string(WriteWholeFile(path, "x").message()),
              HasSubstr(path));
  EXPECT_TRUE(RemoveTree(path).ok());
  EXPECT_THAT(std::string(WriteWholeFile("/dev/full", "x").message()),
              "/dev/full: no space left on device");
}

TEST(FileUtilTest, ReplaceFolder) {
  const std::string root = NewFolder();
  const std::string to = root + "/to";
  for (const char* text : {"one", "two"}) {
    const std::string from = HiddenSibling(to, "tmp");
    EXPECT_EQ(from, root + "/.to.tmp");
    ASSERT_TRUE(MakeFolder(from).ok());
    ASSERT_TRUE(WriteWholeFile(from + "/file", text).ok());
    ASSERT_TRUE(SyncFolder(from, /*files=*/true).ok());
    ASSERT_TRUE(ReplaceFolder(from, to).ok());
    EXPECT_EQ(*ReadWholeFile(to + "/file"), text);
    EXPECT_FALSE(PathExists(from));
    EXPECT_FALSE(PathExists(HiddenSibling(to, "old")));
  }
  EXPECT_FALSE(ReplaceFolder(root + "/none", to).ok());
  EXPECT_EQ(*ReadWholeFile(to + "/file"), "two");
}

}  // namespace
}  // namespace capstan
