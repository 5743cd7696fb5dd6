// SPDX-License-Identifier: Apache-2.0
#include "text/tokens/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace capstan::text {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

std::string NewPath(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/tokens";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/" + name;
  std::filesystem::remove(path);
  return path;
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

absl::StatusOr<std::unique_ptr<TokenFile>> OpenPath(const std::string& path) {
  auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  return TokenFile::Open(*std::move(file));
}

absl::StatusOr<std::unique_ptr<TokenFile>> OpenBytes(const std::string& bytes) {
  const std::string path = NewPath("bytes");
  std::ofstream(path, std::ios::binary) << bytes;
  return OpenPath(path);
}

// Documents of these tokens, under `path`.
void WriteDocuments(const std::string& path, int64_t vocab_size,
                    const std::vector<Ids>& documents) {
  TokenFileInfo info;
  info.vocab_size = vocab_size;
  info.tokenizer_hash = 77;
  auto writer = TokenFileWriter::Create(path, info);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Ids& ids : documents) {
    ASSERT_TRUE((*writer)->Append(ids).ok());
    (*writer)->EndDocument();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  const absl::Status closed = (*writer)->Close();
  ASSERT_TRUE(closed.ok()) << closed;
}

TEST(TokenFileTest, WhatIsWrittenIsRead) {
  // Tokens of two bytes and of four, in several chunks of the file.
  for (const int64_t vocab_size : {int64_t{65536}, int64_t{65537}}) {
    std::mt19937 random(1);
    std::vector<Ids> documents(5);
    Ids all;
    for (size_t i = 0; i < documents.size(); ++i) {
      if (i == 2) continue;  // empty
      documents[i].resize(1500001);
      for (int64_t& id : documents[i]) id = random() % vocab_size;
      documents[i][0] = vocab_size - 1;
      all.insert(all.end(), documents[i].begin(), documents[i].end());
    }
    const std::string path = NewPath("written");
    WriteDocuments(path, vocab_size, documents);
    const auto file = OpenPath(path);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->info().vocab_size, vocab_size);
    EXPECT_EQ((*file)->info().tokenizer_hash, 77);
    EXPECT_FALSE((*file)->info().ends_added);
    ASSERT_EQ((*file)->documents(), 5);
    ASSERT_EQ((*file)->tokens(), static_cast<int64_t>(all.size()));
    EXPECT_EQ((*file)->DocumentBegin(1), 1500001);
    EXPECT_EQ((*file)->DocumentBegin(3), 3000002);
    EXPECT_EQ((*file)->DocumentBegin(5), static_cast<int64_t>(all.size()));
    Ids read(all.size());
    ASSERT_TRUE((*file)->Read(0, all.size(), read.data()).ok());
    EXPECT_EQ(read, all);
    ASSERT_TRUE((*file)->Read(2097150, 5, read.data()).ok());
    EXPECT_TRUE(
        std::equal(read.begin(), read.begin() + 5, all.begin() + 2097150));
    EXPECT_FALSE((*file)->Read(all.size() - 1, 2, read.data()).ok());
    EXPECT_FALSE((*file)->Read(-1, 2, read.data()).ok());
  }
}

TEST(TokenFileTest, NoTokensAtAll) {
  const std::string path = NewPath("none");
  WriteDocuments(path, 10, {});
  const auto file = OpenPath(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->tokens(), 0);
  EXPECT_EQ((*file)->documents(), 0);
}

TEST(TokenFileTest, IdsOutsideTheVocabularyArentWritten) {
  const std::string path = NewPath("outside");
  TokenFileInfo info;
  info.vocab_size = 10;
  auto writer = TokenFileWriter::Create(path, info);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_THAT(std::string((*writer)->Append({9, 10}).message()),
              HasSubstr("token 10 isn't in a vocabulary of 10"));
  EXPECT_FALSE((*writer)->Append({-1}).ok());
  // Abandoned: no file remains.
  writer->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(path).parent_path())) {
    EXPECT_THAT(entry.path().string(), ::testing::Not(HasSubstr("outside")));
  }
  EXPECT_FALSE(TokenFileWriter::Create("/no/such/file", info).ok());
}

TEST(TokenFileTest, EveryDamagedByteIsFound) {
  const std::string path = NewPath("damaged");
  WriteDocuments(path, 300, {{1, 2, 299}, {}, {4}});
  const std::string good = ReadBytes(path);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    const auto file = OpenBytes(bad);
    if (!file.ok()) {
      EXPECT_THAT(std::string(file.status().message()), HasSubstr("bytes"));
      continue;
    }
    Ids read(4);
    const absl::Status status = (*file)->Read(0, 4, read.data());
    // Padding bytes don't matter.
    const bool fills = i >= 64 + 4 * 2 && i < 64 + 8;
    EXPECT_EQ(status.ok(), fills) << "byte " << i;
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    }
  }
  for (size_t size = 1; size < good.size(); ++size) {
    EXPECT_FALSE(OpenBytes(good.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(OpenBytes(good + "x").ok());
}

TEST(TokenFileTest, OthersArentTokenFiles) {
  EXPECT_FALSE(TokenFile::IsTokenFile("CAPTOKN"));
  EXPECT_FALSE(TokenFile::IsTokenFile("once upon a time"));
  EXPECT_TRUE(TokenFile::IsTokenFile("CAPTOKNS"));
  std::string other(64, '\0');
  other.replace(0, 8, "CAPTOKNS");
  other[8] = 2;
  EXPECT_EQ(OpenBytes(other).status().code(), absl::StatusCode::kUnimplemented);
}

// Two `tokenize` of one output at once damaged it in 3 of 15 tries.
TEST(TokenFileTest, WritersOfOnePathAtOnceLeaveAWholeFile) {
  const std::string path = NewPath("at_once");
  for (int round = 0; round < 10; ++round) {
    std::vector<pid_t> writers;
    for (int64_t token : {1, 2}) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        TokenFileInfo info;
        info.vocab_size = 10;
        auto writer = TokenFileWriter::Create(path, info);
        bool ok = writer.ok();
        for (int i = 0; ok && i < 100; ++i) {
          ok = (*writer)->Append(Ids(30000 * token, token)).ok();
        }
        if (ok) (*writer)->EndDocument();
        _exit(ok && (*writer)->Close().ok() ? 0 : 1);
      }
      writers.push_back(pid);
    }
    for (pid_t pid : writers) {
      int status = -1;
      ASSERT_EQ(waitpid(pid, &status, 0), pid);
      EXPECT_EQ(status, 0);
    }
    const auto file = OpenPath(path);
    ASSERT_TRUE(file.ok()) << file.status();
    Ids ids((*file)->tokens());
    ASSERT_TRUE((*file)->Read(0, ids.size(), ids.data()).ok());
    // One writer's, all of it.
    EXPECT_EQ(ids, Ids(3000000 * ids[0], ids[0]));
  }
}

// One was trained on as text.
TEST(TokenFileTest, ADamagedBeginningIsntText) {
  const std::string path = NewPath("damaged.tokens");
  WriteDocuments(path, 300, {{1, 2, 299}});
  const std::string good = ReadBytes(path);
  const auto check = [](const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return TokenFile::CheckIsText(**MappedFile::Open(path));
  };
  EXPECT_TRUE(check(path, good).ok());
  for (size_t i = 0; i < 8; ++i) {
    std::string bad = good;
    bad[i] ^= 1;
    for (const std::string& at : {path, NewPath("other_name")}) {
      const absl::Status status = check(at, bad);
      EXPECT_TRUE(absl::IsDataLoss(status)) << i;
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(at + " is damaged: it doesn't begin"));
    }
  }
  EXPECT_FALSE(check(path, "text").ok());
  EXPECT_TRUE(check(NewPath("text"), "text").ok());
  EXPECT_TRUE(check(NewPath("text"), std::string(100, 'x')).ok());
}

TEST(TokenFileTest, ACutFileIsAnError) {
  const std::string path = NewPath("cut");
  WriteDocuments(path, 300, {Ids(10000, 7)});
  const auto file = OpenPath(path);
  ASSERT_TRUE(file.ok()) << file.status();
  Ids read(10000);
  ASSERT_TRUE((*file)->Read(0, 10000, read.data()).ok());
  // Rewritten in place, with what isn't in the vocabulary.
  std::fstream(path, std::ios::in | std::ios::out) << std::string(1000, '\xff');
  EXPECT_THAT(std::string((*file)->Read(0, 10000, read.data()).message()),
              HasSubstr("it has changed since it was opened"));
  std::filesystem::resize_file(path, 5000);
  const absl::Status status = (*file)->Read(0, 10000, read.data());
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

TEST(TokenFileTest, HashTellsTokenizersApart) {
  EXPECT_NE(TokenizerHash("{}"), TokenizerHash("{} "));
  EXPECT_EQ(TokenizerHash("{}"), TokenizerHash("{}"));
}

}  // namespace
}  // namespace capstan::text
