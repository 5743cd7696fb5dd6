// SPDX-License-Identifier: Apache-2.0
//
// Each part that a tokenizer.json may have, and the files beside it, against
// what tokenizers 0.23.3 and transformers 5.23 make of them
// (make_tokenizers.py).
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int64_t>;

// Writes the files of a case into an empty folder.
std::string Folder(const Json& files) {
  const std::string folder = testing::TempDir() + "/tokenizer";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const auto& [name, content] : files.items()) {
    std::ofstream(folder + "/" + name)
        << (content.is_string() ? content.get<std::string>() : content.dump());
  }
  return folder;
}

void Check(const Json& golden, const Tokenizer& tokenizer) {
  for (const Json& row : golden["cases"]) {
    const std::string text = row[0];
    const Ids ids = tokenizer.Encode(text);
    EXPECT_EQ(ids, row[1].get<Ids>()) << text;
    EXPECT_EQ(tokenizer.Decode(ids), row[2]) << text;
    EXPECT_EQ(tokenizer.EncodeWithPlaces(text).ids, ids) << text;
  }
  Ids ends;
  tokenizer.AddEnds(&ends);
  EXPECT_EQ(ends, golden["ends"].get<Ids>());
  if (!golden.contains("special")) return;
  const Tokenizer::SpecialIds special = tokenizer.special_ids();
  EXPECT_EQ(Ids({special.bos, special.eos, special.pad}),
            golden["special"].get<Ids>());
}

TEST(TokenizerPartsTest, GiveTheReferencesIdsAndTexts) {
  const Json all = Json::parse(
      std::ifstream("tests/golden/testdata/tokenizers/golden.json"));
  ASSERT_GT(all.size(), 60u);
  for (const Json& golden : all) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const auto tokenizer = LoadTokenizer(Folder(golden["files"]));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    Check(golden, **tokenizer);
    // A run's final folder.
    const std::string saved = testing::TempDir() + "/saved";
    std::filesystem::remove_all(saved);
    std::filesystem::create_directories(saved);
    ASSERT_TRUE((*tokenizer)->Save(saved).ok());
    const auto again = LoadTokenizer(saved);
    ASSERT_TRUE(again.ok()) << again.status();
    Check(golden, **again);
  }
}

}  // namespace
}  // namespace capstan
