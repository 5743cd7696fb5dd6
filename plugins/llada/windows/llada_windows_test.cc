// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/windows/llada_windows.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/status.h"

namespace capstan::llada_windows {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int64_t>;

std::string File(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

Ids Values(const at::Tensor& tensor) {
  const int64_t* data = tensor.const_data_ptr<int64_t>();
  return Ids(data, data + tensor.numel());
}

TEST(LladaWindowsTest, BatchesOfAText) {
  Config config;
  config.set_path(File("abc.txt", "abcdefghijklmnopqrstuvwxyz"));
  config.set_sequence_length(6);
  config.set_stride(4);
  config.set_validation_fraction(0.3);
  config.set_shuffle(true);
  const auto reader = LladaWindows::Create(config);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE((*reader)->shuffle());
  EXPECT_EQ((*reader)->size(), 5);  // of 18 characters
  EXPECT_EQ((*reader)->max_sequence_length(), 6);
  EXPECT_THAT((*reader)->notes(), IsEmpty());
  Batch batch;
  ASSERT_TRUE((*reader)->Read({1, 0}, &batch).ok());
  const at::Tensor& ids = batch["input_ids"];
  EXPECT_EQ(ids.sizes(), at::IntArrayRef({2, 6}));
  EXPECT_THAT(Values(ids), ElementsAre(1, 7, 8, 9, 10, 2, 1, 3, 4, 5, 6, 2));
  // Reuses the memory if it fits.
  const void* data = ids.const_data_ptr();
  ASSERT_TRUE((*reader)->Read({4, 4}, &batch).ok());
  EXPECT_EQ(batch["input_ids"].const_data_ptr(), data);
  EXPECT_THAT(std::string((*reader)->Read({5}, &batch).message()),
              HasSubstr("there is no window 5, only 0 to 4"));
  EXPECT_FALSE((*reader)->Read({-1}, &batch).ok());

  const auto validation = (*reader)->Validation();
  ASSERT_TRUE(validation.ok()) << validation.status();
  EXPECT_FALSE((*validation)->shuffle());
  EXPECT_EQ((*validation)->size(), 2);
  ASSERT_TRUE((*validation)->Read({0}, &batch).ok());
  EXPECT_THAT(Values(batch["input_ids"]), ElementsAre(1, 21, 22, 23, 24, 2));
  // The ids are the whole text's.
  EXPECT_EQ((*validation)->tokenizer()->vocab_size(), 3 + 26 + 1);
}

TEST(LladaWindowsTest, ATextThatChangesMeanwhileIsAnError) {
  Config config;
  const std::string path = File("changes.txt", std::string(100, 'a'));
  config.set_path(path);
  config.set_sequence_length(6);
  const auto reader = LladaWindows::Create(config);
  ASSERT_TRUE(reader.ok()) << reader.status();
  Batch batch;
  ASSERT_TRUE((*reader)->Read({0}, &batch).ok());
  // In place: with a character that wasn't there, then cut.
  std::fstream(path, std::ios::in | std::ios::out) << "\u20ac";
  EXPECT_THAT(std::string((*reader)->Read({0}, &batch).message()),
              HasSubstr("changes.txt has changed since the run began"));
  std::filesystem::resize_file(path, 50);
  EXPECT_FALSE((*reader)->Read({(*reader)->size() - 1}, &batch).ok());
}

TEST(LladaWindowsTest, BatchesOfTheOriginalsFiles) {
  Config config;
  config.set_folder("tests/golden/testdata/llada_npy");
  const auto reader = LladaWindows::Create(config);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->size(), 36);
  EXPECT_EQ((*reader)->notes().size(), 1u);
  const auto validation = (*reader)->Validation();
  ASSERT_TRUE(validation.ok()) << validation.status();
  EXPECT_THAT((*validation)->notes(), IsEmpty());
  Batch batch;
  ASSERT_TRUE((*validation)->Read({0, 3}, &batch).ok());
  EXPECT_EQ(batch["input_ids"].sizes(), at::IntArrayRef({2, 64}));
  EXPECT_EQ(Values(batch["input_ids"])[1], 58);

  config.set_stride(4);
  EXPECT_EQ(*FieldOf(LladaWindows::Create(config).status()), "stride");
}

TEST(LladaWindowsTest, ErrorsNameTheField) {
  Config config;
  EXPECT_EQ(*FieldOf(LladaWindows::Create(config).status()), "path");
  config.set_folder("/nowhere");
  EXPECT_EQ(*FieldOf(LladaWindows::Create(config).status()), "folder");
  config.set_path(File("short.txt", "abc"));
  EXPECT_EQ(*FieldOf(LladaWindows::Create(config).status()), "sequence_length");
}

}  // namespace
}  // namespace capstan::llada_windows
