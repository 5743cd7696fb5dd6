// SPDX-License-Identifier: Apache-2.0
//
// Files that aren't what they were when they were opened.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

std::string NewPath() {
  std::string path = ::testing::TempDir() + "/mapped_XXXXXX";
  EXPECT_NE(mkdtemp(&path[0]), nullptr);
  return path + "/data";
}

std::shared_ptr<const MappedFile> Map(const std::string& path, size_t bytes) {
  EXPECT_TRUE(WriteWholeFile(path, std::string(bytes, 'x')).ok());
  auto file = MappedFile::Open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  return *std::move(file);
}

int64_t Sum(absl::string_view bytes) {
  int64_t sum = 0;
  for (char c : bytes) sum += c;
  return sum;
}

TEST(MappedFileTest, WhatAFileLosesReadsAsZerosAndIsSaid) {
  const std::string path = NewPath();
  const size_t page = sysconf(_SC_PAGESIZE);
  const auto file = Map(path, 5 * page + 10);
  const auto other = Map(NewPath(), 3 * page);
  EXPECT_TRUE(file->Check().ok());
  ASSERT_EQ(truncate(path.c_str(), page), 0);
  EXPECT_TRUE(MappedFile::CheckAll().ok());
  // From several threads at once, as data is read.
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_EQ(Sum(file->bytes()), static_cast<int64_t>('x' * page));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : {file->Check(), MappedFile::CheckAll()}) {
    EXPECT_TRUE(absl::IsDataLoss(status));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(path + " lost its bytes from " +
                          std::to_string(page) + " on"));
  }
  EXPECT_TRUE(other->Check().ok());
  EXPECT_EQ(Sum(other->bytes()), static_cast<int64_t>('x' * 3 * page));
}

TEST(MappedFileTest, ALossWithinAPageIsSaid) {
  const std::string path = NewPath();
  const auto file = Map(path, 100);
  ASSERT_EQ(truncate(path.c_str(), 40), 0);
  EXPECT_EQ(Sum(file->bytes()), 'x' * 40);
  EXPECT_THAT(std::string(file->Check().message()),
              HasSubstr(path + " became shorter while it was read: it has 40 "
                               "bytes, had 100"));
  // Another file in its place isn't this one.
  ASSERT_EQ(unlink(path.c_str()), 0);
  EXPECT_TRUE(file->Check().ok());
  ASSERT_TRUE(WriteWholeFile(path, "y").ok());
  EXPECT_TRUE(file->Check().ok());
}

TEST(MappedFileTest, AnUnmappedFilesLossIsForgotten) {
  const std::string path = NewPath();
  auto file = Map(path, 100);
  ASSERT_EQ(truncate(path.c_str(), 0), 0);
  EXPECT_EQ(Sum(file->bytes()), 0);
  EXPECT_FALSE(MappedFile::CheckAll().ok());
  file.reset();
  EXPECT_TRUE(MappedFile::CheckAll().ok());
  // More files than there is room for at first, and their places again.
  for (int round = 0; round < 2; ++round) {
    std::vector<std::shared_ptr<const MappedFile>> files;
    for (int i = 0; i < 200; ++i) files.push_back(Map(path, 10));
    ASSERT_EQ(truncate(path.c_str(), 0), 0);
    EXPECT_EQ(Sum(files[150]->bytes()), 0);
    EXPECT_FALSE(files[150]->Check().ok());
    EXPECT_FALSE(MappedFile::CheckAll().ok());
  }
  EXPECT_TRUE(MappedFile::CheckAll().ok());
}

TEST(MappedFileDeathTest, AnotherBusErrorEndsTheProcess) {
  const auto file = Map(NewPath(), 10);
  // Killed, or with a report of AddressSanitizer, whose handler was there
  // first.
  const auto failed = [](int status) { return status != 0; };
  EXPECT_EXIT(raise(SIGBUS), failed, "");
}

TEST(MappedFileTest, NamedPipesAreErrorsAtOnce) {
  const std::string path = NewPath();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const absl::Status& status :
       {MappedFile::Open(path).status(), ReadWholeFile(path).status(),
        InputFile::Open(path).status()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_EQ(std::string(status.message()),
              path + " is a named pipe, not a file");
  }
}

// As <(..) of a shell is.
TEST(MappedFileTest, APipeOfTheShellsIsReadToItsEnd) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::thread writer([&] {
    // sleeps: a writer that is late
    usleep(100000);
    EXPECT_EQ(write(ends[1], "late", 4), 4);
    close(ends[1]);
  });
  const auto text = ReadWholeFile("/dev/fd/" + std::to_string(ends[0]));
  writer.join();
  close(ends[0]);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "late");
}

}  // namespace
}  // namespace capstan
