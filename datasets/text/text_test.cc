// SPDX-License-Identifier: Apache-2.0
#include "datasets/text/text.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plugins/sdk/status.h"

namespace capstan {
namespace text {
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

}  // namespace
}  // namespace text
}  // namespace capstan
