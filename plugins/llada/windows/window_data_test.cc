// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/windows/window_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/npy.h"
#include "plugins/llada/windows/characters.h"
#include "plugins/sdk/lib/token_difference.h"

namespace capstan::llada_windows {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

constexpr char kGolden[] = "tests/golden/testdata/llada_npy";

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

std::string File(const std::string& name, const std::string& text) {
  std::ofstream(Path(name), std::ios::binary) << text;
  return Path(name);
}

// The characters of window i.
std::string Text(const WindowData& data, const Windows& windows, int64_t i) {
  Ids ids(data.sequence_length);
  windows.Read(i, ids.data());
  return data.tokenizer->Decode(ids);
}

TEST(CharacterTokenizerTest, IdsAreRanksInTheSortedCharacters) {
  const auto made = CharacterTokenizer::OfText("ba\n\u00e9\U0001F600a");
  ASSERT_TRUE(made.ok()) << made.status();
  const CharacterTokenizer& tokenizer = **made;
  EXPECT_EQ(tokenizer.vocab_size(), 3 + 5 + 1);
  EXPECT_EQ(tokenizer.mask(), 8);
  EXPECT_EQ(tokenizer.Encode("\nab\u00e9\U0001F600"), Ids({3, 4, 5, 6, 7}));
  EXPECT_EQ(tokenizer.Decode({3, 4, 5, 6, 7, 99, -1}), "\nab\u00e9\U0001F600");
  EXPECT_EQ(tokenizer.Decode({1, 8, 2, 0}),
            "<|startoftext|><|mdm_mask|><|endoftext|><|padding|>");
  // Unknown characters and invalid bytes are dropped.
  EXPECT_EQ(tokenizer.Encode("a?\xff\u00e8\xe2\x82z<b"), Ids({4, 5}));
  EXPECT_EQ(tokenizer.Encode("a<|mdm_mask|>b"), Ids({4, 8, 5}));
  const Encoding places = tokenizer.EncodeWithPlaces("?\u00e9a");
  EXPECT_EQ(places.begins, Ids({1, 3}));
  EXPECT_EQ(places.ends, Ids({3, 4}));
  EXPECT_EQ(*tokenizer.IdOf("<|mdm_mask|>"), 8);
  EXPECT_EQ(*tokenizer.IdOf("b"), 5);
  EXPECT_FALSE(tokenizer.IdOf("ab").has_value());
  EXPECT_TRUE(tokenizer.IsSpecial(8));
  EXPECT_FALSE(tokenizer.IsSpecial(7));
}

TEST(CharacterTokenizerTest, RefusesWhatIsNotUtf8) {
  for (const char* bytes :
       {"a\xff", "\x80", "\xc0\xaf", "\xe2\x82", "\xed\xa0\x80",
        "\xf4\x90\x80\x80", "\xe0\x80\x80", "\xc3"}) {
    EXPECT_THAT(
        std::string(CharacterTokenizer::OfText(bytes).status().message()),
        HasSubstr("isn't UTF-8"))
        << bytes;
  }
}

// `generate` reads what a run leaves in final/.
TEST(CharacterTokenizerTest, SavedItIsATokenizerOfHuggingFace) {
  const std::string text = "It's a \"na\u00efve\"\\ \u6f22\u5b57\ttest;\n\n<|x";
  const auto made = CharacterTokenizer::OfText(text);
  ASSERT_TRUE(made.ok()) << made.status();
  fs::create_directories(Path("tokenizer"));
  ASSERT_TRUE((*made)->Save(Path("tokenizer")).ok());
  const auto loaded = LoadTokenizer(Path("tokenizer"));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ((*loaded)->vocab_size(), (*made)->vocab_size());
  Ids ids = (*made)->Encode(text + "<|endoftext|>?");
  EXPECT_EQ((*loaded)->Encode(text + "<|endoftext|>?"), ids);
  Ids all((*made)->vocab_size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ((*loaded)->Decode(all), (*made)->Decode(all));
  for (int64_t id : all) {
    EXPECT_EQ((*loaded)->IsSpecial(id), (*made)->IsSpecial(id)) << id;
  }
  EXPECT_EQ((*loaded)->special_ids().bos, kBos);
  EXPECT_EQ((*loaded)->special_ids().eos, kEos);
  EXPECT_EQ((*loaded)->special_ids().pad, kPad);
  Ids ends = ids;
  (*made)->AddEnds(&ids);
  (*loaded)->AddEnds(&ends);
  EXPECT_EQ(ends, ids);
}

TEST(WindowPlacesTest, CountsAreTheOriginals) {
  // Tiny Shakespeare at 4096: range(0, 1115394 - 4096 + 1, 2048), and one from
  // the end.
  const WindowPlaces places = {1115394, 4096, 2048};
  EXPECT_EQ(places.size(), 543 + 1);
  EXPECT_EQ(places.Begin(542), 542 * 2048);
  EXPECT_EQ(places.Begin(543), 1115394 - 4096);
  EXPECT_EQ((WindowPlaces{10, 4, 3}.size()), 3);
  EXPECT_EQ((WindowPlaces{11, 4, 3}.size()), 4);
  EXPECT_EQ((WindowPlaces{11, 4, 3}.Begin(3)), 7);
  EXPECT_EQ((WindowPlaces{4, 4, 3}.size()), 1);
  EXPECT_EQ((WindowPlaces{3, 4, 3}.size()), 0);
}

TEST(TextWindowsTest, TinyShakespearesCount) {
  // Any text of as many characters has as many windows.
  TextWindowsSpec spec;
  spec.path = File("long.txt", std::string(1115394, 'x'));
  for (WindowEnds ends : {WindowEnds::kCut, WindowEnds::kAround}) {
    spec.ends = ends;
    const auto data = OpenTextWindows(spec);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->train->size(), 544);
    EXPECT_EQ(data->validation, nullptr);
    EXPECT_EQ(data->total_tokens, 1115394);
  }
}

TEST(TextWindowsTest, EndsAsAsked) {
  TextWindowsSpec spec;
  spec.path = File("abc.txt", "abcdefghijk");
  spec.sequence_length = 6;
  auto data = OpenTextWindows(spec);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->train->size(), 4);
  EXPECT_EQ(Text(*data, *data->train, 1), "<|startoftext|>defg<|endoftext|>");
  EXPECT_EQ(Text(*data, *data->train, 3), "<|startoftext|>hijk<|endoftext|>");
  spec.ends = WindowEnds::kNone;
  data = OpenTextWindows(spec);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->train->size(), 3);
  EXPECT_EQ(Text(*data, *data->train, 1), "defghi");
  EXPECT_EQ(Text(*data, *data->train, 2), "fghijk");
  spec.ends = WindowEnds::kCut;
  data = OpenTextWindows(spec);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(Text(*data, *data->train, 1), "<|startoftext|>defgh");
}

// Random windows of the text, as in the original, would.
TEST(TextWindowsTest, ValidationNeverOverlapsTraining) {
  // Each character occurs once, so that a window shows its origin; characters
  // of one, two and three bytes.
  std::string text;
  Ids codes;
  for (int64_t code = 0x30; code < 0x1000; ++code) codes.push_back(code);
  for (int64_t code : codes) {
    if (code < 0x80) {
      text += static_cast<char>(code);
    } else if (code < 0x800) {
      text += {static_cast<char>(0xc0 | code >> 6),
               static_cast<char>(0x80 | (code & 0x3f))};
    } else {
      text += {static_cast<char>(0xe0 | code >> 12),
               static_cast<char>(0x80 | (code >> 6 & 0x3f)),
               static_cast<char>(0x80 | (code & 0x3f))};
    }
  }
  for (WindowEnds ends :
       {WindowEnds::kAround, WindowEnds::kNone, WindowEnds::kCut}) {
    TextWindowsSpec spec;
    spec.path = File("codes.txt", text);
    spec.sequence_length = 100;
    spec.validation_fraction = 0.1;
    spec.ends = ends;
    const auto data = OpenTextWindows(spec);
    ASSERT_TRUE(data.ok()) << data.status();
    std::set<int64_t> seen[2];
    Ids ids(spec.sequence_length);
    int part = 0;
    for (const Windows* windows : {data->train.get(), data->validation.get()}) {
      for (int64_t i = 0; i < windows->size(); ++i) {
        windows->Read(i, ids.data());
        for (int64_t id : ids) {
          if (id >= kFirstCharacter) seen[part].insert(id);
        }
      }
      ++part;
    }
    const auto all = static_cast<int64_t>(codes.size());
    EXPECT_LT(*seen[0].rbegin(), *seen[1].begin());
    EXPECT_EQ(*seen[1].begin(), kFirstCharacter + all * 9 / 10);
    // Nothing is dropped; the original drops the last one.
    EXPECT_EQ(static_cast<int64_t>(seen[0].size() + seen[1].size()),
              ends == WindowEnds::kCut ? all - 2 : all);
  }
}

std::shared_ptr<const Tokenizer> SmolLm() {
  auto tokenizer = LoadTokenizer("tests/golden/testdata/tokenizer_smollm");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

TEST(TextWindowsTest, TokensOfAFolder) {
  TextWindowsSpec spec;
  std::string text;
  for (int i = 0; i < 300; ++i) text += absl::StrCat("Line ", i, " of many.\n");
  spec.path = File("lines.txt", text);
  spec.tokenizer = SmolLm();
  spec.sequence_length = 32;
  spec.stride = 32;
  spec.ends = WindowEnds::kNone;
  spec.validation_fraction = 0.25;
  const auto data = OpenTextWindows(spec);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->mask, -1);
  std::string joined;
  for (int64_t i = 0; i < 3; ++i) joined += Text(*data, *data->train, i);
  EXPECT_EQ(text.substr(0, joined.size()), joined);
  joined = Text(*data, *data->validation, 0);
  EXPECT_EQ(text.substr(text.size() * 3 / 4, joined.size()), joined);
}

// Those of another text, whether from it or from its files.
TEST(TextWindowsTest, CharactersOfAModel) {
  const auto made = CharacterTokenizer::OfText("!abcdefghij\n");
  ASSERT_TRUE(made.ok()) << made.status();
  const std::string folder = Path("model");
  fs::create_directories(folder);
  ASSERT_TRUE((*made)->Save(folder).ok());
  auto loaded = LoadTokenizer(folder);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(TokenDifference(**made, **loaded), "");
  TextWindowsSpec spec;
  spec.path = File("some.txt", "gcajgcaj\ngcaj");
  spec.sequence_length = 6;
  for (const std::shared_ptr<const Tokenizer>& model :
       {std::shared_ptr<const Tokenizer>(*made),
        std::shared_ptr<const Tokenizer>(*std::move(loaded))}) {
    spec.tokenizer = model;
    const auto data = OpenTextWindows(spec);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->tokenizer, model);
    std::vector<int64_t> ids(6);
    data->train->Read(0, ids.data());
    EXPECT_THAT(ids, ElementsAre(1, 11, 7, 5, 14, 2));
    spec.path = File("other.txt", "gcaj\ng?aj");
    EXPECT_THAT(OpenTextWindows(spec).status().message(),
                HasSubstr("other.txt:2 has the character \"?\" (U+003F)"));
    spec.path = Path("some.txt");
  }
}

TEST(CharacterTokenizerTest, SaysWhatItLacks) {
  const auto made = CharacterTokenizer::OfText("ab\u65e5");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ((*made)->FirstUnknown("a\u65e5<|endoftext|>b"), -1);
  EXPECT_EQ((*made)->FirstUnknown("a\u65e5<|end|>b"), 4);
  EXPECT_EQ((*made)->FirstUnknown("ab\xff"), 2);
}

TEST(TextWindowsTest, ErrorsNameTheField) {
  const auto error = [](const std::function<void(TextWindowsSpec*)>& change) {
    TextWindowsSpec spec;
    spec.path = Path("abc.txt");
    spec.sequence_length = 6;
    change(&spec);
    return OpenTextWindows(spec).status().ToString();
  };
  File("abc.txt", "abcdefghijk");
  EXPECT_THAT(error([](auto* s) { s->path = ""; }), HasSubstr("is not set"));
  EXPECT_THAT(error([](auto* s) { s->path = Path("none.txt"); }),
              HasSubstr("can't be opened"));
  EXPECT_THAT(error([](auto* s) { s->sequence_length = 3; }),
              HasSubstr("must be at least 4, is 3"));
  EXPECT_THAT(error([](auto* s) { s->sequence_length = 40; }),
              HasSubstr("has only 11 characters"));
  EXPECT_THAT(error([](auto* s) { s->validation_fraction = 0.2; }),
              HasSubstr("'s validation part has only 3 characters"));
  EXPECT_THAT(error([](auto* s) { s->validation_fraction = 1.0; }),
              HasSubstr("must be in [0, 1), is 1"));
  EXPECT_THAT(error([](auto* s) { s->stride = 5; }),
              HasSubstr("must be between 1 and 4, is 5"));
  EXPECT_THAT(error([](auto* s) { s->stride = -1; }), HasSubstr("is -1"));
  EXPECT_THAT(error([](auto* s) { s->path = File("bad.txt", "ab\xff"); }),
              HasSubstr("bad.txt isn't UTF-8 text: byte 2"));
}

// A copy of the golden folder that a test may damage.
std::string GoldenCopy() {
  const std::string folder = Path("npy_copy");
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const char* name :
       {"train_data.npy", "val_data.npy", "metadata.json", "vocab.json"}) {
    std::ofstream out(folder + "/" + name, std::ios::binary);
    out << std::ifstream(std::string(kGolden) + "/" + name, std::ios::binary)
               .rdbuf();
  }
  return folder;
}

TEST(NpyFolderTest, ReadsWhatNumpyHasWritten) {
  const auto data = OpenNpyFolder(kGolden);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->sequence_length, 64);
  EXPECT_EQ(data->train->size(), 36);
  EXPECT_EQ(data->validation->size(), 4);
  EXPECT_EQ(data->total_tokens, 241969);
  EXPECT_EQ(data->tokenizer->vocab_size(), 71);
  const std::string first = Text(*data, *data->train, 0);
  EXPECT_THAT(first, ::testing::StartsWith("<|startoftext|>"));
  // The second window begins one stride, 32, later.
  const std::string second = Text(*data, *data->train, 1);
  EXPECT_EQ(first.substr(15 + 32), second.substr(15, 31));
  Ids row(64);
  data->validation->Read(0, row.data());
  EXPECT_THAT(Ids(row.begin(), row.begin() + 9),
              ElementsAre(1, 58, 58, 5, 3, 31, 50, 62, 4));
  // 126336 in a vocabulary of 71.
  EXPECT_THAT(data->notes, ElementsAre(HasSubstr(
                               "the mask token 126336 isn't in its vocabulary "
                               "of 71; the model's own mask_token_id is")));
  EXPECT_EQ(data->mask, 70);
}

TEST(NpyFolderTest, WhatIsWrittenIsReadAgain) {
  TextWindowsSpec spec;
  std::string text;
  for (int i = 0; i < 100; ++i) text += absl::StrCat("\u00e4 ", i * i, "\n");
  spec.path = File("raw.txt", text);
  spec.sequence_length = 16;
  spec.validation_fraction = 0.1;
  const auto written = OpenTextWindows(spec);
  ASSERT_TRUE(written.ok()) << written.status();
  const std::string folder = Path("written/npy");
  for (int i = 0; i < 2; ++i) {  // over its own files, too
    const absl::Status status = WriteNpyFolder(*written, spec.path, folder);
    ASSERT_TRUE(status.ok()) << status;
  }
  const auto data = OpenNpyFolder(folder);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(HasCharacters(folder));
  EXPECT_TRUE(data->notes.empty());
  EXPECT_EQ(data->mask, written->mask);
  EXPECT_EQ(data->total_tokens, written->total_tokens);
  ASSERT_EQ(data->train->size(), written->train->size());
  ASSERT_EQ(data->validation->size(), written->validation->size());
  for (int64_t i = 0; i < data->train->size(); ++i) {
    EXPECT_EQ(Text(*data, *data->train, i), Text(*written, *written->train, i));
  }
  EXPECT_EQ(*ReadWholeFile(folder + "/shakespeare_raw.txt"), text);

  // A model's own tokenizer is copied along, in place of a vocab.json.
  spec.tokenizer = SmolLm();
  const auto tokens = OpenTextWindows(spec);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  ASSERT_TRUE(WriteNpyFolder(*tokens, spec.path, folder).ok());
  EXPECT_FALSE(HasCharacters(folder));
  const auto again = OpenNpyFolder(folder);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(Text(*again, *again->train, 1), Text(*tokens, *tokens->train, 1));
}

TEST(NpyFolderTest, EachMistakeIsOneSentence) {
  const auto error = [](const std::string& file, const std::string& from,
                        const std::string& to) {
    const std::string folder = GoldenCopy();
    std::string text = *ReadWholeFile(folder + "/" + file);
    EXPECT_THAT(text, HasSubstr(from));
    EXPECT_TRUE(WriteWholeFile(folder + "/" + file,
                               absl::StrReplaceAll(text, {{from, to}}))
                    .ok());
    return std::string(OpenNpyFolder(folder).status().message());
  };
  EXPECT_THAT(error("metadata.json", "\"sequence_length\": 64",
                    "\"sequence_length\": 32"),
              AllOf(HasSubstr("train_data.npy has the shape [36, 64], but "),
                    HasSubstr("metadata.json says [36, 32]")));
  EXPECT_THAT(
      error("metadata.json", "\"val_samples\": 4", "\"val_samples\": 5"),
      HasSubstr("val_data.npy has the shape [4, 64]"));
  EXPECT_THAT(error("metadata.json", "\"bos_token\": 1", "\"bos\": 1"),
              HasSubstr("metadata.json: bos_token is missing"));
  EXPECT_THAT(error("metadata.json", "\"bos_token\": 1",
                    "\"bos_token\": 18446744073709551616"),
              HasSubstr("metadata.json: bos_token must be an integer below "
                        "2^63, is 1.8446744073709552e+19"));
  EXPECT_EQ(error("metadata.json", "}", ", \"n\": 18446744073709551616}"), "");
  EXPECT_THAT(error("metadata.json", "\"bos_token\": 1", "\"bos_token\": 7"),
              HasSubstr("bos_token of characters is 1, not 7"));
  EXPECT_THAT(error("metadata.json", "}", ""),
              HasSubstr("metadata.json: not a JSON object"));
  EXPECT_THAT(error("metadata.json", "126336", "10"),
              HasSubstr("the mask needs an id of its own, but 10"));
  EXPECT_THAT(
      error("metadata.json", "\"vocab_size\": 71", "\"vocab_size\": 70"),
      HasSubstr("vocab.json says vocab_size 71, but"));
  EXPECT_THAT(
      error("metadata.json", "\"vocab_size\": 71", "\"vocab_size\": -1"),
      HasSubstr("vocab_size must be from 1 to 2^31 - 1, is -1"));
  EXPECT_THAT(error("vocab.json", "\"a\": 46", "\"a\": 45"),
              HasSubstr("must have an id of its own"));
  EXPECT_THAT(error("vocab.json", "\"a\": 46", "\"ab\": 46"),
              HasSubstr("\"ab\" in char_to_id isn't one character"));
  EXPECT_THAT(error("vocab.json", "char_to_id", "x"),
              HasSubstr("has no object \"char_to_id\""));
  EXPECT_THAT(error("train_data.npy", "<i8", "<f8"),
              HasSubstr("holds float64, not int64"));
  EXPECT_THAT(error("train_data.npy", "<i8", ">i8"), HasSubstr("big-endian"));
  EXPECT_THAT(error("train_data.npy", "False,", "True, "),
              HasSubstr("Fortran order"));

  std::string folder = GoldenCopy();
  fs::resize_file(folder + "/val_data.npy", 2000);
  EXPECT_THAT(std::string(OpenNpyFolder(folder).status().message()),
              HasSubstr("val_data.npy is truncated: [4, 64] elements"));
  folder = GoldenCopy();
  ASSERT_TRUE(
      WriteNpy<int64_t>(folder + "/val_data.npy", {4, 64}, Ids(256, 71)).ok());
  EXPECT_THAT(std::string(OpenNpyFolder(folder).status().message()),
              HasSubstr("window 0 has the id 71, which isn't in the "
                        "vocabulary of 71"));
  for (const char* name : {"metadata.json", "train_data.npy", "vocab.json"}) {
    folder = GoldenCopy();
    fs::remove(folder + "/" + name);
    EXPECT_THAT(std::string(OpenNpyFolder(folder).status().message()),
                HasSubstr(name));
  }
  EXPECT_THAT(std::string(OpenNpyFolder(Path("nowhere")).status().message()),
              HasSubstr("nowhere is not a folder"));
}

}  // namespace
}  // namespace capstan::llada_windows
