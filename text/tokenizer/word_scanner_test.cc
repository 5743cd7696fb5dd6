// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/word_scanner.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "text/tokenizer/regex.h"

namespace capstan::tokenizer {
namespace {

// Text biased towards what the expressions distinguish.
std::string RandomText(std::mt19937* random) {
  static const char* const parts[] = {
      " ",  "  ",  "\n", "\r\n",   "\t",     "\x0b",   "\x1c",
      "a",  "Zx",  "s",  "LL",     "re",     "'",      "'s",
      "'T", "'ve", "'l", "0",      "12",     "999",    ".",
      "!?", "_",   "é",  "ſ",      "漢",     "\u0301", "٣",
      "½",  "—",   "😀",  "\u00a0", "\u3000", "\u2028", "\u0085"};
  std::uniform_int_distribution<size_t> part(0, std::size(parts) - 1);
  std::uniform_int_distribution<int> ascii(1, 127);
  std::uniform_int_distribution<int> length(0, 24);
  std::string text;
  for (int i = length(*random); i > 0; --i) {
    if (i % 4 == 0) {
      text += static_cast<char>(ascii(*random));
    } else {
      text += parts[part(*random)];
    }
  }
  return text;
}

class WordScannerTest : public testing::TestWithParam<const char*> {};

TEST_P(WordScannerTest, IsTheExpressionOnRandomTexts) {
  const WordScanner scanner = FindWordScanner(GetParam());
  ASSERT_NE(scanner, nullptr);
  const auto regex = Regex::Compile(GetParam());
  ASSERT_TRUE(regex.ok()) << regex.status();
  std::mt19937 random(5);
  RegexState state;
  int64_t scanned = 0;
  int64_t all = 0;
  for (int i = 0; i < 30000; ++i) {
    const std::string text = RandomText(&random);
    for (size_t at = 0; at < text.size(); ++all) {
      size_t begin = 0;
      size_t end = 0;
      ASSERT_TRUE((*regex)->Find(text, at, &state, &begin, &end));
      ASSERT_EQ(begin, at) << "something isn't matched in " << text;
      const size_t bytes = scanner(text.data() + at, text.data() + text.size());
      scanned += bytes > 0 ? 1 : 0;
      ASSERT_TRUE(bytes == 0 || bytes == end - begin)
          << "at byte " << at << " of \"" << text << "\": " << bytes
          << " bytes, not " << end - begin;
      at = end;
    }
  }
  EXPECT_GT(scanned, all / 4);
}

TEST_P(WordScannerTest, AsciiIsNeverLeftToTheExpression) {
  const WordScanner scanner = FindWordScanner(GetParam());
  std::mt19937 random(6);
  for (int i = 0; i < 1000; ++i) {
    std::string text = RandomText(&random);
    for (char& c : text) c &= 0x7f;
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = scanner(text.data() + at, text.data() + text.size());
      ASSERT_GT(bytes, 0u);
      at += bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WordScannerTest,
                         testing::Values(kGpt2Words, kLlama3Words,
                                         kQwen2Words));

TEST(WordScannerTest, OthersHaveNone) {
  EXPECT_EQ(FindWordScanner(R"(\p{L}+)"), nullptr);
}

}  // namespace
}  // namespace capstan::tokenizer
