// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers of small tokenizer.json files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokenizer/testing.h"

namespace capstan::tokenizer {
namespace {

using Ids = std::vector<int64_t>;

Json Bytes() { return Json::parse(ByteTokenizerJson()); }

Json AddedToken(int id, const std::string& content) {
  return {{"id", id},        {"content", content}, {"single_word", false},
          {"lstrip", false}, {"rstrip", false},    {"normalized", false},
          {"special", true}};
}

std::string AllBytes() {
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  return all;
}

TEST(HfTokenizerTest, TheByteTokenizersFileGivesTheByteTokenizer) {
  const auto bytes = NewByteTokenizer();
  const std::string folder = NewFolder("bytes");
  ASSERT_TRUE(bytes->Save(folder).ok());
  const auto loaded = LoadTokenizer(folder);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->vocab_size(), 256);
  for (const std::string& text :
       {std::string(), AllBytes(), std::string("na\u00efve \u6f22\n")}) {
    const Ids ids = bytes->Encode(text);
    EXPECT_EQ((*loaded)->Encode(text), ids);
    EXPECT_EQ((*loaded)->Decode(ids), text);
    const Encoding expected = bytes->EncodeWithPlaces(text);
    const Encoding places = (*loaded)->EncodeWithPlaces(text);
    EXPECT_EQ(places.ids, expected.ids);
    EXPECT_EQ(places.begins, expected.begins);
    EXPECT_EQ(places.ends, expected.ends);
  }
  EXPECT_EQ((*loaded)->Decode({-1, 256, 1000, 'x'}), "x");
}

// The characters of bytes in a byte-level BPE vocabulary.
TEST(HfTokenizerTest, ByteVocabularyIsGpt2sTable) {
  const Json vocab = Bytes()["model"]["vocab"];
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

TEST(HfTokenizerTest, AddedTokensAreFoundFirstTheLongestOfThem) {
  Json json = Bytes();
  json["added_tokens"] = {AddedToken(256, "<|a|>"), AddedToken(257, "<|a|><"),
                          AddedToken(258, "WORD"), AddedToken(259, "<l>"),
                          AddedToken(260, "<r>")};
  json["added_tokens"][2]["single_word"] = true;
  json["added_tokens"][2]["special"] = false;
  json["added_tokens"][3]["lstrip"] = true;
  json["added_tokens"][4]["rstrip"] = true;
  const auto loaded = Load(json.dump());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const Tokenizer& tokenizer = **loaded;
  EXPECT_EQ(tokenizer.vocab_size(), 261);
  EXPECT_EQ(tokenizer.Encode("x<|a|>y<|a|><"), Ids({'x', 256, 'y', 257}));
  EXPECT_EQ(tokenizer.Encode("WORD-WORD"), Ids({258, '-', 258}));
  EXPECT_EQ(tokenizer.Encode("WORDS").size(), 5u);
  EXPECT_EQ(tokenizer.Encode("aWORD").size(), 5u);
  EXPECT_EQ(tokenizer.Encode("\u00e9WORD").size(), 6u);
  EXPECT_EQ(tokenizer.Encode("x \n <l> y"), Ids({'x', 259, ' ', 'y'}));
  EXPECT_EQ(tokenizer.Encode("x <r> \u3000y"), Ids({'x', ' ', 260, 'y'}));
  const Encoding places = tokenizer.EncodeWithPlaces("x \n <l> y");
  EXPECT_EQ(places.begins, Ids({0, 1, 7, 8}));
  EXPECT_EQ(places.ends, Ids({1, 7, 8, 9}));
  EXPECT_EQ(tokenizer.Decode({'x', 256}), "x<|a|>");
  EXPECT_EQ(tokenizer.IdOf("<|a|>"), 256);
  EXPECT_EQ(tokenizer.IdOf("nothing"), absl::nullopt);
  EXPECT_TRUE(tokenizer.IsSpecial(256));
  EXPECT_FALSE(tokenizer.IsSpecial(258));
  EXPECT_FALSE(tokenizer.IsSpecial('x'));
  EXPECT_FALSE(tokenizer.IsSpecial(-1));
}

TEST(HfTokenizerTest, NormalizedTokensAreFoundInNormalizedText) {
  Json json = Bytes();
  json["normalizer"] = {{"type", "Lowercase"}};
  json["added_tokens"] = {AddedToken(256, "<A>"), AddedToken(257, "<B>")};
  json["added_tokens"][0]["normalized"] = true;
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("<a>X<b><B>"),
            Ids({256, 'x', '<', 'b', '>', 257}));
  EXPECT_EQ((*tokenizer)->Decode({256, 257}), "<a><B>");
}

// White space that a token has taken may begin the next.
TEST(HfTokenizerTest, MatchesMayOverlapInWhiteSpace) {
  Json json = Bytes();
  json["added_tokens"] = {AddedToken(256, "<r>"), AddedToken(257, "  ")};
  json["added_tokens"][0]["rstrip"] = true;
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("a<r>   b"), Ids({'a', 256, 257, ' ', 'b'}));
}

TEST(HfTokenizerTest, PlacesAreThoseOfTheTextAsGiven) {
  Json json = Bytes();
  json["normalizer"] = {{"type", "Sequence"},
                        {"normalizers",
                         {{{"type", "NFC"}},
                          {{"type", "Replace"},
                           {"pattern", {{"String", "--"}}},
                           {"content", "+"}}}}};
  json["pre_tokenizer"]["add_prefix_space"] = true;
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  // The second character is e with an acute accent, in two characters.
  const Encoding places = (*tokenizer)->EncodeWithPlaces("ae\u0301--z");
  EXPECT_EQ(places.ids, Ids({' ', 'a', 0xc3, 0xa9, '+', 'z'}));
  // A prefix maps to the first character.
  EXPECT_EQ(places.begins, Ids({0, 0, 1, 1, 4, 6}));
  EXPECT_EQ(places.ends, Ids({1, 1, 4, 4, 6, 7}));
}

TEST(HfTokenizerTest, InvalidUtf8IsReplaced) {
  Json json = Bytes();
  json["pre_tokenizer"]["use_regex"] = true;
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Encoding places = (*tokenizer)->EncodeWithPlaces("a\xff z");
  EXPECT_EQ(places.ids, Ids({'a', 0xef, 0xbf, 0xbd, ' ', 'z'}));
  EXPECT_EQ(places.begins, Ids({0, 1, 1, 1, 2, 3}));
  EXPECT_EQ(places.ends, Ids({1, 2, 2, 2, 3, 4}));
}

// What Encode leaves out, as Hugging Face's library does, is at least found.
TEST(HfTokenizerTest, SaysWhichTextHasNoToken) {
  Json json = Bytes();
  const auto first = [&json](absl::string_view text) {
    const auto tokenizer = Load(json.dump());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return (*tokenizer)->FirstUnknown(text);
  };
  EXPECT_EQ(first(AllBytes()), -1);
  json["model"]["vocab"].erase("b");
  EXPECT_EQ(first("aab\xff"), 2);
  EXPECT_EQ(first("a\xff"), -1);
  // Characters, some of which are added tokens or made others of.
  json["pre_tokenizer"] = nullptr;
  json["decoder"] = {{"type", "Fuse"}};
  json["model"]["vocab"] = {{"a", 0}, {"e", 1}, {"\u0301", 2}};
  json["added_tokens"] = {AddedToken(3, "<x>")};
  EXPECT_EQ(first("ae<x>"), -1);
  EXPECT_EQ(first("ae<x>\u00e9"), 5);
  EXPECT_EQ(first("ae\nz"), 2);
  json["normalizer"] = {{"type", "NFD"}};
  EXPECT_EQ(first("ae<x>\u00e9"), -1);
  EXPECT_EQ(first("\u00e9\u00fc"), 2);
  json["model"]["unk_token"] = "e";
  EXPECT_EQ(first("z"), -1);
}

TEST(HfTokenizerTest, Metaspace) {
  Json json = Bytes();
  json["model"]["vocab"] = {{"\u2581", 0}, {"H", 1}, {"i", 2}, {"\u2581H", 3}};
  json["model"]["merges"] = {"\u2581 H"};
  json["pre_tokenizer"] = {{"type", "Metaspace"},
                           {"replacement", "\u2581"},
                           {"prepend_scheme", "first"},
                           {"split", true}};
  json["decoder"] = json["pre_tokenizer"];
  json["added_tokens"] = {AddedToken(4, "<s>")};
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("Hi H<s>Hi"), Ids({3, 2, 3, 4, 1, 2}));
  // Part of a text keeps its leading space.
  EXPECT_EQ((*tokenizer)->Decode({3, 2, 3}), " Hi H");
  json["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_EQ((*Load(json.dump()))->Encode("Hi<s>Hi"), Ids({3, 2, 4, 3, 2}));
}

TEST(HfTokenizerTest, SplitsAsToldAndDigitsAlone) {
  // Merges show where words end.
  Json json = Bytes();
  json["model"]["vocab"]["11"] = 256;
  json["model"]["vocab"]["--"] = 257;
  json["model"]["vocab"]["x-"] = 258;
  json["model"]["vocab"]["-x"] = 259;
  json["model"]["merges"] = {"1 1", "- -", "x -", "- x"};
  const Json byte_level = json["pre_tokenizer"];
  const auto encode = [&](const Json& first, const std::string& text) {
    json["pre_tokenizer"] = {{"type", "Sequence"},
                             {"pretokenizers", {first, byte_level}}};
    const auto tokenizer = Load(json.dump());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return tokenizer.ok() ? (*tokenizer)->Encode(text) : Ids();
  };
  EXPECT_EQ(encode({{"type", "Digits"}, {"individual_digits", true}}, "11"),
            Ids({'1', '1'}));
  EXPECT_EQ(encode({{"type", "Digits"}, {"individual_digits", false}}, "11"),
            Ids({256}));
  const auto split = [&](const std::string& behavior, bool invert) {
    return encode({{"type", "Split"},
                   {"pattern", {{"String", "-"}}},
                   {"behavior", behavior},
                   {"invert", invert}},
                  "x--x");
  };
  EXPECT_EQ(split("Removed", false), Ids({'x', 'x'}));
  EXPECT_EQ(split("Removed", true), Ids({'-', '-'}));
  EXPECT_EQ(split("Isolated", false), Ids({'x', '-', '-', 'x'}));
  EXPECT_EQ(split("MergedWithPrevious", false), Ids({258, '-', 'x'}));
  EXPECT_EQ(split("MergedWithNext", false), Ids({'x', '-', 259}));
  EXPECT_EQ(split("Contiguous", false), Ids({'x', 257, 'x'}));
}

TEST(HfTokenizerTest, EndsAndSpecialIdsAndTemplate) {
  Json json = Bytes();
  json["added_tokens"] = {AddedToken(256, "<s>"), AddedToken(257, "</s>")};
  json["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens",
       {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}};
  Json config = {{"bos_token", "<s>"},
                 {"eos_token", {{"content", "</s>"}, {"lstrip", false}}},
                 {"pad_token", nullptr},
                 {"chat_template", "{{ x }}"}};
  auto tokenizer = Load(json.dump(), config.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  Ids ids = {'x'};
  (*tokenizer)->AddEnds(&ids);
  EXPECT_EQ(ids, Ids({256, 'x'}));
  EXPECT_EQ((*tokenizer)->special_ids().bos, 256);
  EXPECT_EQ((*tokenizer)->special_ids().eos, 257);
  EXPECT_EQ((*tokenizer)->special_ids().pad, -1);
  EXPECT_EQ((*tokenizer)->chat_template(), "{{ x }}");

  // Transformers 5 reads neither where there is a tokenizer.json.
  config["add_bos_token"] = false;
  config["add_eos_token"] = true;
  config["chat_template"] = {{{"name", "tools"}, {"template", "t"}},
                             {{"name", "default"}, {"template", "d"}}};
  tokenizer = Load(json.dump(), config.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  ids = {'x'};
  (*tokenizer)->AddEnds(&ids);
  EXPECT_EQ(ids, Ids({256, 'x'}));
  EXPECT_EQ((*tokenizer)->chat_template(), "d");
}

// "No limit" as PreTrainedTokenizerFast.save_pretrained spells it.
TEST(HfTokenizerTest, NumbersMayBeOfAnySize) {
  const std::string no_limit =
      R"({"model_max_length": 1000000000000000019884624838656})";
  std::string tokenizer_json = ByteTokenizerJson();
  tokenizer_json.insert(tokenizer_json.rfind('}'),
                        ", \"truncation\": {\"max_length\": 1e400}");
  const auto tokenizer = Load(tokenizer_json, no_limit);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->Encode("ab"), (std::vector<int64_t>{97, 98}));
  const std::string to = NewFolder("saved");
  ASSERT_TRUE((*tokenizer)->Save(to).ok());
  EXPECT_EQ(ReadText(to + "/tokenizer_config.json"), no_limit);
}

TEST(HfTokenizerTest, SavesTheFilesAsTheyWere) {
  const std::string from = NewFolder("from");
  const std::string to = NewFolder("to");
  WriteText(from + "/tokenizer.json", Bytes().dump() + "\n\n ");
  WriteText(from + "/chat_template.jinja", "{{ 1 }}\n");
  auto tokenizer = LoadTokenizer(from);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->chat_template(), "{{ 1 }}\n");
  ASSERT_TRUE((*tokenizer)->Save(to).ok());
  EXPECT_EQ(ReadText(to + "/tokenizer.json"),
            ReadText(from + "/tokenizer.json"));
  EXPECT_EQ(ReadText(to + "/chat_template.jinja"), "{{ 1 }}\n");
  EXPECT_FALSE(std::filesystem::exists(to + "/tokenizer_config.json"));
  EXPECT_FALSE((*tokenizer)->Save("/no/such/folder").ok());
}

TEST(HfTokenizerTest, ThreadsShareIt) {
  Json json = Bytes();
  json["pre_tokenizer"]["use_regex"] = true;
  json["model"]["vocab"]["ab"] = 256;
  json["model"]["merges"] = {"a b"};
  const auto tokenizer = Load(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "ab abc cab " + std::to_string(i);
  const Ids expected = (*tokenizer)->Encode(text);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j) {
        EXPECT_EQ((*tokenizer)->Encode(text), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace capstan::tokenizer
