// SPDX-License-Identifier: Apache-2.0
#include "text/tokens/text_pieces.h"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/in_order.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::text {
namespace {

using Ids = std::vector<int64_t>;

std::string Lines() {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "line " + std::to_string(i) + ", na\u00efve \u6f22\u5b57 don't";
    text += i % 3 == 0 ? "\n\n  " : i % 5 == 0 ? "\r\n" : "\n";
  }
  return text;
}

class TextPiecesTest : public testing::TestWithParam<const char*> {};

TEST_P(TextPiecesTest, TokensOfPiecesAreTheTexts) {
  const auto tokenizer =
      LoadTokenizer(std::string("tests/golden/testdata/") + GetParam());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = Lines();
  const auto pieces = CutText(**tokenizer, text, 1000);
  EXPECT_GT(pieces.size(), 50u);
  std::string joined;
  Ids ids;
  for (absl::string_view piece : pieces) {
    joined += std::string(piece);
    const Ids more = (*tokenizer)->Encode(piece);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  EXPECT_EQ(joined, text);
  EXPECT_EQ(ids, (*tokenizer)->Encode(text));
}

INSTANTIATE_TEST_SUITE_P(All, TextPiecesTest,
                         testing::Values("tokenizer_smollm",
                                         "tokenizer_gemma"));

// One that joins a newline with what follows can't be cut there.
class NewlineJoiner final : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 512; }
  Ids Encode(absl::string_view text) const override {
    Ids ids;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool joins = text[i] == '\n' && i + 1 < text.size();
      ids.push_back(joins ? 256 + text[++i] : text[i]);
    }
    return ids;
  }
  Encoding EncodeWithPlaces(absl::string_view text) const override {
    return {};
  }
  std::string Decode(absl::Span<const int64_t> ids) const override {
    return "";
  }
  absl::Status Save(const std::string& folder) const override {
    return absl::OkStatus();
  }
};

TEST(TextPiecesTest, StaysWholeWhereACutWouldShow) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "a line\n";
  EXPECT_EQ(CutText(NewlineJoiner(), text, 50).size(), 1u);
  EXPECT_GT(CutText(*NewByteTokenizer(), text, 50).size(), 10u);
  EXPECT_EQ(CutText(*NewByteTokenizer(), std::string(1000, 'a'), 50).size(),
            1u);
}

// Has a token for each byte but 'x'.
class NoX final : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  Ids Encode(absl::string_view text) const override {
    Ids ids;
    for (const char c : text) {
      if (c != 'x') ids.push_back(c);
    }
    return ids;
  }
  Encoding EncodeWithPlaces(absl::string_view text) const override {
    return {};
  }
  std::string Decode(absl::Span<const int64_t> ids) const override {
    return "";
  }
  absl::Status Save(const std::string& folder) const override {
    return absl::OkStatus();
  }
  int64_t FirstUnknown(absl::string_view text) const override {
    return static_cast<int64_t>(text.find('x'));
  }
};

TEST(TextPiecesTest, WhatHasNoTokenIsAnErrorWithItsLine) {
  std::string text;
  while (text.size() < 3 << 20) text += "a line\n";
  const std::string path = testing::TempDir() + "/text";
  std::ofstream(path) << text << "a x";
  auto file = MappedFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<uint32_t> ids;
  const absl::string_view bytes = (*file)->bytes();
  EXPECT_TRUE(
      AppendTokens(NoX(), bytes.substr(0, text.size()), **file, &ids).ok());
  EXPECT_EQ(ids.size(), text.size());
  EXPECT_EQ(AppendTokens(NoX(), bytes.substr(100), **file, &ids).message(),
            path + ":" + std::to_string(text.size() / 7 + 1) +
                " has the character \"x\" (U+0078), for which the tokenizer "
                "has neither a token nor one that stands for unknown text");
}

TEST(InOrderTest, TakesInOrderWhateverTheThreads) {
  for (int threads : {1, 3}) {
    std::vector<int64_t> taken;
    const absl::Status status = InOrder<int64_t>(
        threads, 200, [](int64_t i) { return i * i; },
        [&](int64_t made) {
          taken.push_back(made);
          return absl::OkStatus();
        });
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(taken.size(), 200u);
    for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(taken[i], i * i);
  }
}

TEST(InOrderTest, TheFirstErrorEndsIt) {
  for (int threads : {1, 3}) {
    std::atomic<int> made(0);
    int taken = 0;
    const auto run = [&](bool throws) {
      return InOrder<int>(
          threads, 10000,
          [&](int64_t i) -> absl::StatusOr<int> {
            ++made;
            if (i == 5 && throws) throw std::runtime_error("thrown");
            if (i == 5) return absl::DataLossError("five");
            return 0;
          },
          [&](int) {
            ++taken;
            return absl::OkStatus();
          });
    };
    EXPECT_EQ(run(false), absl::DataLossError("five"));
    EXPECT_EQ(taken, 5);
    EXPECT_LT(made, 100);
    EXPECT_EQ(run(true).message(), "thrown");
  }
}

}  // namespace
}  // namespace capstan::text
