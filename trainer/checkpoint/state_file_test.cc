// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/state_file.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "trainer/checkpoint/checkpoint_testing.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kChunk = kChunkBytes / 4;  // float32 elements
// Of the parameter; three chunks, the last not full.
constexpr int64_t kBegin = 1000;
constexpr int64_t kLength = 2 * kChunk + 12345;
constexpr char kName[] = "state-00000-of-00001.safetensors";

// Bytes that this process has read from the kernel.
int64_t BytesRead() {
  std::ifstream io("/proc/self/io");
  std::string key;
  int64_t value = 0;
  io >> key >> value;
  EXPECT_EQ(key, "rchar:");
  return value;
}

// A file of elements kBegin.. of "w", whose values are their numbers, between
// two small ranges.
class StateFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = NewFolder();
    const auto written = WriteStateFile(
        folder_, kName,
        {{{"master", "a", 0, 3, {}}, at::arange(3, at::kFloat)},
         {{"master", "w", kBegin, kLength, {}},
          at::arange(kBegin, kBegin + kLength, at::kFloat)},
         {{"exp_avg", "w", 0, 5, {}}, at::arange(5, at::kBFloat16)}});
    ASSERT_TRUE(written.ok()) << written.status();
    file_ = *written;
  }

  // "" if elements [begin, begin + length) of "w" are read right.
  std::string ReadError(int64_t begin, int64_t length,
                        c10::ScalarType dtype = at::kFloat) {
    const auto opened = StateFile::Open(folder_, file_);
    if (!opened.ok()) return std::string(opened.status().message());
    absl::Status status = (*opened)->Check(file_.ranges[1]);
    const at::Tensor out = at::empty({length}, dtype);
    if (status.ok()) status = (*opened)->Read(file_.ranges[1], begin, out);
    if (!status.ok()) return std::string(status.message());
    EXPECT_TRUE(
        out.equal(at::arange(begin, begin + length, at::kFloat).to(dtype)));
    return "";
  }

  void DamageByte(int64_t element_of_w) {
    std::fstream file(folder_ + "/" + kName,
                      std::ios::in | std::ios::out | std::ios::binary);
    // "w" ends 5 bfloat16 values before the end.
    file.seekp(file_.bytes - 10 - 4 * (kBegin + kLength - element_of_w));
    file.put('!');
    ASSERT_TRUE(file.good());
  }

  std::string folder_;
  ManifestFile file_;
};

TEST_F(StateFileTest, SaysWhatItHolds) {
  EXPECT_EQ(file_.name, kName);
  EXPECT_EQ(file_.bytes, std::filesystem::file_size(folder_ + "/" + kName));
  ASSERT_EQ(file_.ranges.size(), 3);
  EXPECT_EQ(file_.ranges[0].crc32c.size(), 1);
  EXPECT_EQ(file_.ranges[1].crc32c.size(), 3);
  const float first[] = {0.0f, 1.0f, 2.0f};
  EXPECT_EQ(file_.ranges[0].crc32c[0],
            Crc32c({reinterpret_cast<const char*>(first), sizeof(first)}));
}

TEST_F(StateFileTest, ReadsAnyPart) {
  EXPECT_EQ(ReadError(kBegin, kLength), "");
  EXPECT_EQ(ReadError(kBegin + kChunk - 1, 2), "");
  EXPECT_EQ(ReadError(kBegin + kLength - 1, 1), "");
  EXPECT_EQ(ReadError(kBegin + 7, kChunk + 1, at::kDouble), "");
}

TEST_F(StateFileTest, ReadsNoMoreThanTheChunksThatHoldIt) {
  const int64_t before = BytesRead();
  EXPECT_EQ(ReadError(kBegin + kChunk + 5, 10), "");
  EXPECT_GE(BytesRead() - before, kChunkBytes);
  EXPECT_LE(BytesRead() - before, kChunkBytes + 4096);
}

TEST_F(StateFileTest, DamageIsFoundWhereItIsReadAndOnlyThere) {
  DamageByte(kBegin + kChunk + 5);
  EXPECT_EQ(ReadError(kBegin, kChunk), "");
  EXPECT_EQ(ReadError(kBegin + 2 * kChunk, 12345), "");
  for (const int64_t begin : {kChunk - 1, kChunk + 5, 2 * kChunk - 1}) {
    EXPECT_THAT(
        ReadError(kBegin + begin, 2),
        AllOf(HasSubstr(folder_ + "/" + kName),
              HasSubstr("CRC-32C of bytes 4194304 to 8388607 of its tensor "
                        "'master/w/1000'"),
              HasSubstr("remove " + folder_ + " to resume")));
  }
}

TEST_F(StateFileTest, AnotherHeaderIsRefused) {
  ManifestRange& range = file_.ranges[1];
  range.begin = 999;
  EXPECT_THAT(ReadError(1000, 1), HasSubstr("has no tensor 'master/w/999'"));
  range.begin = kBegin;
  range.length -= 1;
  EXPECT_THAT(ReadError(1000, 1),
              HasSubstr(absl::StrCat("'master/w/1000' has ", kLength,
                                     " elements with 3 checksums")));
  range.length += 1;
  range.crc32c.pop_back();
  EXPECT_THAT(ReadError(1000, 1), HasSubstr("with 2"));
  // Bytes of the header, which hold no values.
  std::string bytes = *ReadWholeFile(folder_ + "/" + kName);
  bytes[10] ^= 1;
  ASSERT_TRUE(WriteWholeFile(folder_ + "/" + kName, bytes).ok());
  EXPECT_THAT(ReadError(1000, 1),
              AllOf(HasSubstr(kName), HasSubstr("is damaged: ")));
}

}  // namespace
}  // namespace capstan
