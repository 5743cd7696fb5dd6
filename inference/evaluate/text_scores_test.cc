// SPDX-License-Identifier: Apache-2.0
//
// Expected values are those of numpy and the package rouge-score.
#include "inference/evaluate/text_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::evaluate {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const Pattern> Compiled(const char* pattern) {
  auto compiled = Pattern::Compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return std::move(*compiled);
}

TEST(TextScoresTest, AHostilePatternEnds) {
  const absl::Status status =
      ExactMatch(std::string(60, 'a') + "b", "a", {{Compiled("(a+)+$")}})
          .status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("match limit"));
}

TEST(TextScoresTest, ExactMatchRewritesBoth) {
  ExactMatchOptions options;
  EXPECT_TRUE(ExactMatch("42", "42", options).value());
  EXPECT_FALSE(ExactMatch("42.", "42", options).value());
  options.ignore = {Compiled(","), Compiled("\\$"), Compiled("\\.$")};
  EXPECT_TRUE(ExactMatch("$1,042.", "1042", options).value());
  options.ignore_case = true;
  EXPECT_TRUE(ExactMatch("Yes", "yes", options).value());
  EXPECT_FALSE(ExactMatch("Yes!", "yes", options).value());
  options.ignore_punctuation = true;
  EXPECT_TRUE(ExactMatch("Yes!", "yes", options).value());
  EXPECT_FALSE(ExactMatch("yes 1", "yes ", options).value());
  options.ignore_numbers = true;
  EXPECT_TRUE(ExactMatch("yes 1", "yes ", options).value());
}

TEST(TextScoresTest, RougeLIsTheFMeasureOfTheLongestCommonSubsequence) {
  EXPECT_DOUBLE_EQ(RougeL("The cat sat.", "the cat sat"), 1.0);
  // 3 of 6 and of 6 words in order.
  EXPECT_DOUBLE_EQ(RougeL("police killed the gunman in town",
                          "the gunman was shot by police"),
                   2.0 * 2 / 12);
  EXPECT_DOUBLE_EQ(RougeL("a b c d", "a x c"), 2.0 * 2 / 7);
  EXPECT_DOUBLE_EQ(RougeL("", "a"), 0.0);
  EXPECT_DOUBLE_EQ(RougeL("a", "b"), 0.0);
}

TEST(TextScoresTest, CaseAndMarksOfAllScripts) {
  EXPECT_EQ(Lower("ÉΣЖ a"), "éσж a");
  EXPECT_EQ(Upper("éж"), "ÉЖ");
  ExactMatchOptions options;
  options.all_punctuation = true;
  EXPECT_EQ(Rewritten("a、b.¿c+", options).value(), "abc+");
  EXPECT_EQ(Compiled("x(.)y")->Replace("xay xby", "<${1}>").value(), "<a> <b>");
}

}  // namespace
}  // namespace capstan::evaluate
