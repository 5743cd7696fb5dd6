// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/folder_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "plugins/sdk/byte_tokenizer.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

std::string Folder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(FolderTokenizerTest, SavedByteTokenizerIsFoundAgain) {
  const std::string folder = Folder("bytes");
  ASSERT_TRUE(NewByteTokenizer()->Save(folder).ok());
  const auto tokenizer = LoadFolderTokenizer(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  const std::vector<int64_t> ids = (*tokenizer)->Encode(all);
  ASSERT_EQ(ids.size(), 256);
  for (int b = 0; b < 256; ++b) EXPECT_EQ(ids[b], b);
  EXPECT_EQ((*tokenizer)->Decode(ids), all);
  EXPECT_TRUE(std::filesystem::exists(folder + "/tokenizer_config.json"));
}

// The characters that stand for bytes in a byte-level BPE vocabulary.
TEST(FolderTokenizerTest, VocabularyIsGpt2sByteTable) {
  const nlohmann::json json = nlohmann::json::parse(ByteTokenizerJson());
  const nlohmann::json& vocab = json["model"]["vocab"];
  ASSERT_EQ(vocab.size(), 256);
  EXPECT_EQ(vocab["A"], 'A');
  EXPECT_EQ(vocab["\u0120"], ' ');   // G with dot above
  EXPECT_EQ(vocab["\u010a"], '\n');  // C with dot above
  EXPECT_EQ(vocab["\u0100"], 0);
  EXPECT_EQ(vocab["\u00ff"], 255);
  std::set<int> ids;
  for (const auto& [character, id] : vocab.items()) ids.insert(id.get<int>());
  EXPECT_EQ(ids.size(), 256);
}

TEST(FolderTokenizerTest, OthersAreNamed) {
  const std::string folder = Folder("other");
  std::ofstream(folder + "/tokenizer.json") << R"({"model":{"type":"BPE"}})";
  EXPECT_THAT(std::string(LoadFolderTokenizer(folder).status().message()),
              HasSubstr("other/tokenizer.json"));
  EXPECT_EQ(LoadFolderTokenizer(Folder("none")).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace capstan
