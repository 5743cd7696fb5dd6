// SPDX-License-Identifier: Apache-2.0
#include "datasets/text/text.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/model_tokenizer.h"
#include "text/tokens/token_file.h"

namespace capstan::text {
namespace {

using ::testing::HasSubstr;

std::string File(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

Config MakeConfig(const std::string& path, int64_t length,
                  double validation = 0) {
  Config config;
  config.set_path(path);
  config.set_sequence_length(length);
  config.set_validation_fraction(validation);
  return config;
}

std::vector<int64_t> Ids(const DatasetReader& reader,
                         std::vector<int64_t> indices) {
  Batch batch;
  EXPECT_TRUE(reader.Read(indices, &batch).ok());
  const at::Tensor& ids = batch.at("input_ids");
  EXPECT_EQ(ids.size(0), indices.size());
  return {ids.data_ptr<int64_t>(), ids.data_ptr<int64_t>() + ids.numel()};
}

TEST(TextTest, SamplesAreConsecutivePiecesOfBytes) {
  const auto text = Text::Create(MakeConfig(File("a", "abcdefgh\xff\x01z"), 3));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ((*text)->size(), 3);
  EXPECT_EQ(Ids(**text, {2, 0}),
            std::vector<int64_t>({'g', 'h', 0xff, 'a', 'b', 'c'}));
  EXPECT_EQ((*text)->tokenizer()->vocab_size(), 256);
  EXPECT_EQ((*text)->max_sequence_length(), 3);
  EXPECT_EQ(*(*text)->Validation(), nullptr);
}

TEST(TextTest, ValidationIsTheEndAndNeverTrainedOn) {
  const auto text = Text::Create(MakeConfig(File("v", "0123456789"), 2, 0.4));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ((*text)->size(), 3);
  const auto validation = (*text)->Validation();
  ASSERT_TRUE(validation.ok()) << validation.status();
  EXPECT_EQ((*validation)->size(), 2);
  EXPECT_EQ(Ids(**validation, {0, 1}),
            std::vector<int64_t>({'6', '7', '8', '9'}));
  EXPECT_FALSE((*validation)->shuffle());
}

TEST(TextTest, WritesIntoAnEarlierBatchOfTheSameShape) {
  const auto text = Text::Create(MakeConfig(File("w", "abcdef"), 2));
  ASSERT_TRUE(text.ok()) << text.status();
  Batch batch;
  ASSERT_TRUE((*text)->Read({0, 1}, &batch).ok());
  const void* const place = batch.at("input_ids").const_data_ptr();
  ASSERT_TRUE((*text)->Read({2, 0}, &batch).ok());
  const at::Tensor& ids = batch.at("input_ids");
  EXPECT_EQ(ids.const_data_ptr(), place);
  EXPECT_EQ(std::vector<int64_t>(ids.data_ptr<int64_t>(),
                                 ids.data_ptr<int64_t>() + ids.numel()),
            std::vector<int64_t>({'e', 'f', 'a', 'b'}));
  ASSERT_TRUE((*text)->Read({1}, &batch).ok());
  EXPECT_EQ(batch.at("input_ids").size(0), 1);
}

void ExpectError(const Config& config, const std::string& field,
                 const std::string& words) {
  const auto text = Text::Create(config);
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(FieldOf(text.status()), field);
  EXPECT_THAT(std::string(text.status().message()), HasSubstr(words));
}

TEST(TextTest, BadInputNamesFieldAndFile) {
  const std::string folder = ::testing::TempDir() + "/folder";
  std::filesystem::create_directories(folder);
  ExpectError(MakeConfig("", 4), "path", "not set");
  ExpectError(MakeConfig("/no/such.txt", 4), "path", "/no/such.txt");
  ExpectError(MakeConfig(folder, 4), "path", "is not a file");
  ExpectError(MakeConfig(File("empty", ""), 4), "path", "is empty");
  ExpectError(MakeConfig(File("short", "abc"), 4), "sequence_length",
              "only 3 bytes");
  ExpectError(MakeConfig(File("b", "abcdefgh"), 1), "sequence_length",
              "at least 2");
  ExpectError(MakeConfig(File("b", "abcdefgh"), 4, 1.0), "validation_fraction",
              "[0, 1)");
  ExpectError(MakeConfig(File("b", "abcdefgh"), 4, 0.9), "sequence_length",
              "without its validation part");
  const auto text = Text::Create(MakeConfig(File("b", "abcdefgh"), 4, 0.25));
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(std::string((*text)->Validation().status().message()),
              HasSubstr("validation part has only 2 bytes"));
}

// A Hugging Face folder: each byte is a token, and "ab" and "abab" are.
std::string Tokens() {
  const std::string folder = ::testing::TempDir() + "/tokenizer";
  std::filesystem::create_directories(folder);
  nlohmann::json json = nlohmann::json::parse(ByteTokenizerJson());
  json["model"]["vocab"]["ab"] = 256;
  json["model"]["vocab"]["abab"] = 300;
  json["model"]["merges"] = {"a b", "ab ab"};
  std::ofstream(folder + "/tokenizer.json") << json.dump();
  return folder;
}

TEST(TextTest, TokensOfAFoldersTokenizer) {
  Config config = MakeConfig(File("t", "ababxab\ncdab"), 2);
  config.mutable_tokenizer()->set_folder(Tokens());
  const auto text = Text::Create(config);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ((*text)->tokenizer()->vocab_size(), 301);
  ASSERT_EQ((*text)->size(), 3);
  EXPECT_EQ(Ids(**text, {0, 1, 2}),
            std::vector<int64_t>({300, 'x', 256, '\n', 'c', 'd'}));
}

// Without one in the config, the model's.
TEST(TextTest, TokensOfTheModels) {
  auto model = LoadTokenizer(Tokens());
  ASSERT_TRUE(model.ok()) << model.status();
  SetModelTokenizer({*std::move(model), Tokens()});
  Config config = MakeConfig(File("m", "ababxab\ncdab"), 2);
  const auto text = Text::Create(config);
  config.mutable_tokenizer()->mutable_bytes();
  const auto bytes = Text::Create(config);
  SetModelTokenizer({});
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(Ids(**text, {0}), std::vector<int64_t>({300, 'x'}));
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(Ids(**bytes, {0}), std::vector<int64_t>({'a', 'b'}));
}

// The end of the text is held back: no token spans the boundary.
TEST(TextTest, ValidationIsCutBetweenCharacters) {
  Config config = MakeConfig(File("c", "abab\u00e9cdcdcd"), 2, 0.58);
  config.mutable_tokenizer()->set_folder(Tokens());
  const auto text = Text::Create(config);
  ASSERT_TRUE(text.ok()) << text.status();
  const auto validation = (*text)->Validation();
  ASSERT_TRUE(validation.ok()) << validation.status();
  // Byte 5 is inside the character of bytes 4 and 5.
  EXPECT_EQ(Ids(**text, {0}), std::vector<int64_t>({300, 0xc3}));
  EXPECT_EQ(Ids(**validation, {0, 1, 2}),
            std::vector<int64_t>({'c', 'd', 'c', 'd', 'c', 'd'}));
}

// Many pieces, tokenized by threads, give the same tokens as one.
TEST(TextTest, LongTextsAreTokenizedWhole) {
  std::string lines;
  while (lines.size() < 5 << 20) lines += "ababab xab\n";
  Config config = MakeConfig(File("long", lines), 7);
  config.mutable_tokenizer()->set_folder(Tokens());
  const auto text = Text::Create(config);
  ASSERT_TRUE(text.ok()) << text.status();
  const std::vector<int64_t> line = {300, 256, ' ', 'x', 256, '\n'};
  EXPECT_EQ((*text)->size(), lines.size() / 11 * 6 / 7);
  for (int64_t i : {int64_t{0}, (*text)->size() / 3, (*text)->size() - 1}) {
    const std::vector<int64_t> ids = Ids(**text, {i});
    for (int64_t j = 0; j < 7; ++j) EXPECT_EQ(ids[j], line[(7 * i + j) % 6]);
  }
}

TEST(TextTest, FilesOfTokens) {
  const std::string folder = Tokens();
  std::ifstream json(folder + "/tokenizer.json");
  TokenFileInfo info;
  info.vocab_size = 301;
  info.tokenizer_hash =
      TokenizerHash(std::string(std::istreambuf_iterator<char>(json), {}));
  const std::string path = ::testing::TempDir() + "/made.tokens";
  auto writer = TokenFileWriter::Create(path, info);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append({300, 1, 2, 3, 4, 5, 6, 7, 8, 9}).ok());
  (*writer)->EndDocument();
  ASSERT_TRUE((*writer)->Close().ok());

  Config config = MakeConfig(path, 3, 0.3);
  ExpectError(config, "tokenizer", "name the folder");
  config.mutable_tokenizer()->mutable_bytes();
  ExpectError(config, "tokenizer", "isn't the one");
  config.mutable_tokenizer()->set_folder(folder);
  const auto text = Text::Create(config);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(Ids(**text, {1, 0}), std::vector<int64_t>({3, 4, 5, 300, 1, 2}));
  EXPECT_EQ(Ids(**(*text)->Validation(), {0}), std::vector<int64_t>({7, 8, 9}));
  config.clear_tokenizer();
  SetModelTokenizer({NewByteTokenizer(), folder});
  EXPECT_TRUE(Text::Create(config).ok());
  SetModelTokenizer({});
  config.mutable_tokenizer()->set_folder(folder);
  config.set_sequence_length(11);
  ExpectError(config, "sequence_length", "only 10 tokens");

  std::fstream(path, std::ios::in | std::ios::out).seekp(64) << 'x';
  config.set_sequence_length(3);
  const auto damaged = Text::Create(config);
  ASSERT_TRUE(damaged.ok()) << damaged.status();
  Batch batch;
  EXPECT_EQ((*damaged)->Read({0}, &batch).code(), absl::StatusCode::kDataLoss);
  // Nor is it trained on as text.
  std::fstream(path, std::ios::in | std::ios::out).seekp(0) << 'x';
  ExpectError(config, "path", "made.tokens is damaged: it doesn't begin");
}

TEST(TextTest, ATextThatIsCutMeanwhileIsAnError) {
  const std::string path = File("cut", std::string(100000, 'a'));
  const auto text = Text::Create(MakeConfig(path, 10));
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  for (int64_t sample : {int64_t{9}, (*text)->size() - 1}) {
    Batch batch;
    const absl::Status status = (*text)->Read({sample}, &batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_NE(status.message().find(path), std::string::npos) << status;
  }
}

TEST(TextTest, BadTokenizersNameTheFolder) {
  Config config = MakeConfig(File("bad", "abcdefgh"), 2);
  config.mutable_tokenizer()->set_folder("/no/such");
  ExpectError(config, "tokenizer.folder", "/no/such/tokenizer.json");
}

}  // namespace
}  // namespace capstan::text
