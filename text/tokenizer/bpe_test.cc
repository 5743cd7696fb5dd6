// SPDX-License-Identifier: Apache-2.0
//
// Merges by the tokenizer against merges by the book.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/lib/byte_tokenizer.h"
#include "text/tokenizer/testing.h"

namespace capstan::tokenizer {
namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

// Random merges of the given characters and of earlier merges' results.
Merges RandomMerges(const std::vector<std::string>& characters, int n,
                    std::mt19937* random) {
  std::vector<std::string> tokens = characters;
  Merges merges;
  while (static_cast<int>(merges.size()) < n) {
    const std::string left = tokens[(*random)() % tokens.size()];
    const std::string right = tokens[(*random)() % tokens.size()];
    if (left.size() + right.size() > 12) continue;
    const std::pair<std::string, std::string> merge(left, right);
    if (std::find(merges.begin(), merges.end(), merge) != merges.end()) {
      continue;
    }
    merges.push_back(merge);
    if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end()) {
      tokens.push_back(left + right);
    }
  }
  return merges;
}

// Reference: merges the lowest rank first, leftmost of equals, one at a time.
std::vector<std::string> ByTheBook(std::vector<std::string> symbols,
                                   const Merges& merges) {
  while (true) {
    size_t best = symbols.size();
    size_t best_rank = merges.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = std::find(merges.begin(), merges.end(),
                                   std::make_pair(symbols[i], symbols[i + 1]));
      const size_t rank = found - merges.begin();
      if (rank < best_rank) {
        best = i;
        best_rank = rank;
      }
    }
    if (best == symbols.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + best + 1);
  }
}

Json WithMerges(Json json, const Merges& merges) {
  for (const auto& [left, right] : merges) {
    Json& vocab = json["model"]["vocab"];
    if (!vocab.contains(left + right)) {
      const size_t id = vocab.size();
      vocab[left + right] = id;
    }
    json["model"]["merges"].push_back({left, right});
  }
  return json;
}

void Compare(const Json& json, const std::vector<std::string>& characters,
             const Merges& merges, std::mt19937* random) {
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (int i = 0; i < 300; ++i) {
    std::vector<std::string> symbols;
    std::string text;
    // Lengths below and above the threshold of the heap.
    for (int n = 1 + (*random)() % (i % 2 == 0 ? 12 : 150); n > 0; --n) {
      symbols.push_back(characters[(*random)() % characters.size()]);
      text += symbols.back();
    }
    std::vector<int64_t> expected;
    for (const std::string& token : ByTheBook(symbols, merges)) {
      expected.push_back(json["model"]["vocab"].at(token));
    }
    ASSERT_EQ((*tokenizer)->Encode(text), expected) << text;
    const Encoding places = (*tokenizer)->EncodeWithPlaces(text);
    ASSERT_EQ(places.ids, expected);
    int64_t end = 0;
    for (size_t j = 0; j < places.ids.size(); ++j) {
      ASSERT_EQ(places.begins[j], end);
      end = places.ends[j];
    }
    ASSERT_EQ(end, static_cast<int64_t>(text.size()));
    ASSERT_EQ((*tokenizer)->Decode(expected), text);
  }
}

TEST(BpeTest, RandomMergesOfBytes) {
  std::mt19937 random(1);
  const std::vector<std::string> characters = {"a", "b", "c", "d"};
  for (int n : {1, 4, 10, 40}) {
    const Merges merges = RandomMerges(characters, n, &random);
    Compare(WithMerges(Json::parse(ByteTokenizerJson()), merges), characters,
            merges, &random);
  }
}

TEST(BpeTest, RandomMergesOfCharacters) {
  std::mt19937 random(2);
  const std::vector<std::string> characters = {"a", "\u00e9", "\u2581",
                                               "\u6f22", "b"};
  for (int n : {1, 4, 10, 40}) {
    const Merges merges = RandomMerges(characters, n, &random);
    Json json = Json::parse(ByteTokenizerJson());
    json["pre_tokenizer"] = nullptr;
    json["decoder"] = {{"type", "Fuse"}};
    json["model"]["vocab"] = Json::object();
    for (const std::string& character : characters) {
      const size_t id = json["model"]["vocab"].size();
      json["model"]["vocab"][character] = id;
    }
    Compare(WithMerges(json, merges), characters, merges, &random);
  }
}

Json CharacterJson(const std::vector<std::string>& tokens) {
  Json json = Json::parse(ByteTokenizerJson());
  json["pre_tokenizer"] = nullptr;
  json["decoder"] = {
      {"type", "Sequence"},
      {"decoders", {{{"type", "ByteFallback"}}, {{"type", "Fuse"}}}}};
  json["model"]["vocab"] = Json::object();
  for (const std::string& token : tokens) {
    const size_t id = json["model"]["vocab"].size();
    json["model"]["vocab"][token] = id;
  }
  return json;
}

using Ids = std::vector<int64_t>;

TEST(BpeTest, UnknownCharacters) {
  Json json = CharacterJson({"<unk>", "a", "b"});
  // Dropped if there is no token for them.
  EXPECT_EQ((*Load(json.dump()))->Encode("a\u00e9\u6f22xb"), Ids({1, 2}));
  json["model"]["unk_token"] = "<unk>";
  EXPECT_EQ((*Load(json.dump()))->Encode("a\u00e9xb"), Ids({1, 0, 0, 2}));
  json["model"]["fuse_unk"] = true;
  const auto fused = Load(json.dump());
  const Encoding places = (*fused)->EncodeWithPlaces("a\u00e9xb");
  EXPECT_EQ(places.ids, Ids({1, 0, 2}));
  EXPECT_EQ(places.begins, Ids({0, 1, 4}));
  EXPECT_EQ(places.ends, Ids({1, 4, 5}));
}

TEST(BpeTest, WhatLiesAroundALeftOutCharacterMerges) {
  Json json = CharacterJson({"a", "b", "ab"});
  json["model"]["merges"] = {"a b"};
  EXPECT_EQ((*Load(json.dump()))->Encode("a\u6f22b"), Ids({2}));
  json = Json::parse(ByteTokenizerJson());
  json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"ab", 2}};
  json["model"]["merges"] = {"a b"};
  const auto bytes = Load(json.dump());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ((*bytes)->Encode("axb" + std::string(30, 'x')), Ids({2}));
}

TEST(BpeTest, BytesForUnknownCharacters) {
  std::vector<std::string> tokens = {"<unk>", "a"};
  const char digits[] = "0123456789ABCDEF";
  for (int b = 0; b < 256; ++b) {
    tokens.push_back(std::string("<0x") + digits[b / 16] + digits[b % 16] +
                     ">");
  }
  Json json = CharacterJson(tokens);
  json["model"]["unk_token"] = "<unk>";
  json["model"]["byte_fallback"] = true;
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Encoding places = (*tokenizer)->EncodeWithPlaces("a\u00e9");
  EXPECT_EQ(places.ids, Ids({1, 2 + 0xc3, 2 + 0xa9}));
  EXPECT_EQ(places.begins, Ids({0, 1, 1}));  // each has the whole character
  EXPECT_EQ(places.ends, Ids({1, 3, 3}));
  EXPECT_EQ((*tokenizer)->Decode({2 + 0xc3}) + (*tokenizer)->Decode({2 + 0xa9}),
            "\u00e9");
}

// So it is in tokenizers 0.23.3: ids and places.
TEST(BpeTest, AnUnknownCharacterComesBehindBytesThatFollowIt) {
  Json json = CharacterJson({"<unk>", "a", "<0xC3>", "<0xA9>"});
  json["model"]["unk_token"] = "<unk>";
  json["model"]["byte_fallback"] = true;
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Encoding places = (*tokenizer)->EncodeWithPlaces("a\U0001F600\u00e9");
  EXPECT_EQ(places.ids, Ids({1, 2, 3, 0}));
  EXPECT_EQ(places.begins, Ids({0, 1, 1, 1}));
  EXPECT_EQ(places.ends, Ids({1, 5, 5, 7}));
}

TEST(BpeTest, IgnoreMergesTakesWholeWords) {
  Json json = Json::parse(ByteTokenizerJson());
  json["pre_tokenizer"]["use_regex"] = true;
  json["model"]["vocab"]["abc"] = 256;  // no merge produces it
  json["model"]["vocab"]["ab"] = 257;
  json["model"]["merges"] = {"a b"};
  EXPECT_EQ((*Load(json.dump()))->Encode("abc"), Ids({257, 'c'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ((*Load(json.dump()))->Encode("abc abcd"),
            Ids({256, ' ', 257, 'c', 'd'}));
}

}  // namespace
}  // namespace capstan::tokenizer
