// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/appended_lines.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

namespace capstan {
namespace {

std::string NewPath(const std::string& name) {
  const std::string path = testing::TempDir() + "/" + name;
  std::remove(path.c_str());
  return path;
}

AppendedLines Opened(const std::string& path) {
  absl::StatusOr<AppendedLines> lines = AppendedLines::Open(path);
  EXPECT_TRUE(lines.ok()) << lines.status();
  return *std::move(lines);
}

std::string TextIn(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(LineWriter, HasWrittenAllAtItsEnd) {
  const std::string path = NewPath("line_writer_all");
  {
    LineWriter writer(Opened(path));
    for (const char* line : {"1", "2", "3"}) {
      EXPECT_TRUE(writer.Add(line).ok());
    }
  }
  EXPECT_EQ(TextIn(path), "1\n2\n3\n");
}

// A pipe that nobody reads takes 64 KiB, and then holds who writes.
TEST(LineWriter, NobodyWaitsForASlowDisk) {
  const std::string path = NewPath("line_writer_slow");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::fstream reader(path);  // both ways, which doesn't wait for the other end
  LineWriter writer(Opened(path));
  const std::string line(1 << 20, 'x');
  EXPECT_TRUE(writer.Add(line).ok());
  EXPECT_FALSE(writer.idle());
  EXPECT_TRUE(writer.Add("last").ok());
  std::string text;
  std::getline(reader, text);
  EXPECT_EQ(text, line);
  std::getline(reader, text);
  EXPECT_EQ(text, "last");
}

TEST(LineWriter, TellsThatItCannotWrite) {
  LineWriter writer(Opened("/dev/full"));
  EXPECT_TRUE(writer.Add("1").ok());
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!writer.idle() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(writer.Add("2").ok());
}

}  // namespace
}  // namespace capstan
