// SPDX-License-Identifier: Apache-2.0
#include "desk/export/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

std::string Path(const std::string& name) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove(path);
  return path;
}

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const GgufValues& Values() {
  static const auto* const values = new GgufValues{
      {"general.architecture", std::string("llama")},
      {"llama.block_count", uint32_t{3}},
      {"llama.rope.freq_base", 10000.0f},
      {"tokenizer.ggml.add_bos_token", true},
      {"tokenizer.ggml.tokens", std::vector<std::string>{"a", "", "\u2581b"}},
      {"tokenizer.ggml.token_type", std::vector<int32_t>{1, -2, 3}},
      {"tokenizer.ggml.scores", std::vector<float>{0.5f, -1.0f}},
      {"pattern", std::vector<bool>{true, false, true}},
      {"empty", std::vector<std::string>{}},
  };
  return *values;
}

std::vector<GgufTensor> Tensors() {
  return {{"norm.weight", GgufType::kF32, {3}},
          {"blk.0.attn_q.weight", GgufType::kF16, {2, 5}},
          {"token_embd.weight", GgufType::kQ8_0, {4, 64}}};
}

absl::Status Write(const std::string& path) {
  auto writer = GgufWriter::Create(path, Values(), Tensors());
  if (!writer.ok()) return writer.status();
  for (const GgufTensor& tensor : Tensors()) {
    const std::string bytes(tensor.bytes(), tensor.name[0]);
    for (const auto& piece : {bytes.substr(0, 7), bytes.substr(7)}) {
      const absl::Status status = (*writer)->Append(piece);
      if (!status.ok()) return status;
    }
  }
  return (*writer)->Close();
}

TEST(GgufFileTest, IsReadAsWritten) {
  const std::string path = Path("whole.gguf");
  ASSERT_TRUE(Write(path).ok());
  const auto reader = GgufReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->values(), Values());
  ASSERT_EQ((*reader)->tensors().size(), 3);
  const std::string bytes = BytesOf(path);
  for (const GgufTensor& tensor : Tensors()) {
    const GgufReader::Entry& entry = (*reader)->tensors().at(tensor.name);
    EXPECT_EQ(entry.tensor.shape, tensor.shape);
    EXPECT_EQ(entry.tensor.type, tensor.type);
    EXPECT_EQ(std::string(entry.data, tensor.bytes()),
              std::string(tensor.bytes(), tensor.name[0]));
  }
}

// As the format says: magic, version, counts; a value; a tensor whose sizes are
// innermost first; tensors at multiples of 32 bytes.
TEST(GgufFileTest, HasTheFormatsBytes) {
  const std::string path = Path("bytes.gguf");
  auto writer = GgufWriter::Create(
      path, {{"k", uint32_t{7}}},
      {{"t", GgufType::kF32, {2, 3}}, {"u", GgufType::kF16, {1}}});
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE((*writer)->Append(std::string(24, 'x')).ok());
  ASSERT_TRUE((*writer)->Append("yz").ok());
  ASSERT_TRUE((*writer)->Close().ok());
  const auto number = [](uint64_t value, int bytes) {
    return std::string(reinterpret_cast<const char*>(&value), bytes);
  };
  std::string wanted =
      absl::StrCat("GGUF", number(3, 4), number(2, 8), number(1, 8),
                   number(1, 8), "k", number(4, 4), number(7, 4), number(1, 8),
                   "t", number(2, 4), number(3, 8), number(2, 8));
  absl::StrAppend(&wanted, number(0, 4), number(0, 8), number(1, 8), "u",
                  number(1, 4), number(1, 8), number(1, 4), number(32, 8));
  wanted.resize((wanted.size() + 31) / 32 * 32);
  absl::StrAppend(&wanted, std::string(24, 'x'), std::string(8, '\0'), "yz",
                  std::string(30, '\0'));
  EXPECT_EQ(BytesOf(path), wanted);
}

TEST(GgufFileTest, NothingIsLeftWithoutAllTensors) {
  const std::string path = Path("part.gguf");
  {
    auto writer = GgufWriter::Create(path, Values(), Tensors());
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(std::string(12, 'n')).ok());
    EXPECT_EQ((*writer)->Close().code(), absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(GgufFileTest, ReplacesNothing) {
  const std::string path = Path("there.gguf");
  std::ofstream(path) << "mine";
  EXPECT_FALSE(GgufWriter::Create(path, Values(), Tensors()).ok());
  EXPECT_EQ(BytesOf(path), "mine");
}

TEST(GgufFileTest, AnyCutIsSeen) {
  const std::string path = Path("cut.gguf"), part = Path("cut_part.gguf");
  ASSERT_TRUE(Write(path).ok());
  const std::string bytes = BytesOf(path);
  // The last tensor has 272 bytes, and 16 behind it that nobody reads.
  for (size_t size = 1; size + 16 < bytes.size(); size += 1 + size / 64) {
    std::ofstream(part, std::ios::binary | std::ios::trunc)
        << bytes.substr(0, size);
    const auto reader = GgufReader::Open(part);
    ASSERT_FALSE(reader.ok()) << size;
    EXPECT_THAT(reader.status().ToString(), HasSubstr("damaged")) << size;
  }
}

}  // namespace
}  // namespace capstan
