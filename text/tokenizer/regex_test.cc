// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/regex.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace capstan::tokenizer {
namespace {

using ::testing::StartsWith;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Matches(absl::string_view pattern,
                                 absl::string_view text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  if (!regex.ok()) return {};
  RegexState state;
  RegexMatches matches(**regex, text, &state);
  std::vector<std::string> found;
  size_t begin = 0;
  size_t end = 0;
  while (matches.Next(&begin, &end)) {
    found.emplace_back(text.substr(begin, end - begin));
  }
  return found;
}

TEST(RegexTest, ClassesAreUnicodes) {
  EXPECT_THAT(Matches(R"(\p{L}+|\p{N}+)", "Åb٣4 漢x"),
              ElementsAre("Åb", "٣4", "漢x"));
  EXPECT_THAT(Matches(R"(\w+)", "na\u00efve_1 \u0939\u093f"),
              ElementsAre("na\u00efve_1", "\u0939\u093f"));
  // U+00A0 and U+3000 are white space; U+180E and U+200B aren't.
  EXPECT_THAT(Matches(R"(\s)", "a\u00a0b\u3000c\u180ed\u200b"),
              ElementsAre("\u00a0", "\u3000"));
  EXPECT_THAT(Matches(R"([^\s\p{L}]+)", "a\u00a0-!b"), ElementsAre("-!"));
  // The script, not its extensions: U+3001 is common to several.
  EXPECT_THAT(Matches(R"(\p{Han}+)", "漢、字"), ElementsAre("漢", "字"));
  EXPECT_THAT(Matches(R"(\p{^L}+)", "a12b"), ElementsAre("12"));
}

TEST(RegexTest, LooksAheadAndIgnoresCase) {
  EXPECT_THAT(Matches(R"(\s+(?!\S)|\s+)", "a   b  "),
              ElementsAre("  ", " ", "  "));
  EXPECT_THAT(Matches(R"((?i:'s|'t)|x)", "'S 't X x"),
              ElementsAre("'S", "'t", "x"));
  EXPECT_THAT(Matches("(?i)ab", "Ab aB"), ElementsAre("Ab", "aB"));
}

TEST(RegexTest, RubysWayToWriteItBecomesPcre2s) {
  EXPECT_EQ(*ToPcre2(R"(a{,3}\v{x)"), R"(a{0,3}\x0b\{x)");
  EXPECT_EQ(*ToPcre2("\\u4e00"), R"(\x{4e00})");
  // Behind what PCRE2 knows comes what was assigned since its Unicode.
  EXPECT_THAT(*ToPcre2(R"([\-\w]\.)"),
              StartsWith(R"([\-\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{)"));
  // ^ and $ are those of lines.
  EXPECT_THAT(Matches("^.", "ab\ncd"), ElementsAre("a", "c"));
}

TEST(RegexTest, EmptyMatchesGoForward) {
  EXPECT_THAT(Matches("(?=[A-Z])", "aBcD"), ElementsAre("", ""));
  EXPECT_THAT(Matches("x*", "éxx"), ElementsAre("", "xx"));
}

TEST(RegexTest, WhatMeansSomethingElseIsNamed) {
  for (const char* pattern :
       {R"(\h)", R"(\bx)", "[a&&b]", "[[:alpha:]]", "(?m:.)", "(?<name>x)",
        "(*FAIL)", R"(\K)", R"(\xe2)", R"(\pL)", "x{2}+", "[]a]", R"(\1)"}) {
    const auto regex = Regex::Compile(pattern);
    EXPECT_EQ(regex.status().code(), absl::StatusCode::kUnimplemented)
        << pattern << ": " << regex.status();
    EXPECT_THAT(std::string(regex.status().message()), HasSubstr(pattern));
  }
  // Found by regex_fuzz: what isn't UTF-8 led out of the pattern.
  for (const char* pattern :
       {"(", "[a", "a)", "\\", "*", "\\\xff\xff", "a\\\xf0"}) {
    const auto regex = Regex::Compile(pattern);
    EXPECT_EQ(regex.status().code(), absl::StatusCode::kInvalidArgument)
        << pattern << ": " << regex.status();
  }
  EXPECT_FALSE(Regex::Compile(R"(\p{Nonsense})").ok());
}

TEST(RegexTest, GivingUpIsAnException) {
  const auto regex = Regex::Compile("(?:(?:a+)+)+[bc]");
  ASSERT_TRUE(regex.ok());
  RegexState state;
  size_t begin = 0;
  size_t end = 0;
  EXPECT_THROW((*regex)->Find(std::string(200, 'a'), 0, &state, &begin, &end),
               std::runtime_error);
}

}  // namespace
}  // namespace capstan::tokenizer
