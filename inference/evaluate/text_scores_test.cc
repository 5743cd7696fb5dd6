// SPDX-License-Identifier: Apache-2.0
//
// Expected values are those of Python's re, numpy and the package rouge-score.
#include "inference/evaluate/text_scores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::evaluate {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::shared_ptr<const Pattern> Compiled(const char* pattern) {
  auto compiled = Pattern::Compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  return std::move(*compiled);
}

TEST(PatternTest, FindsAllAsPython) {
  EXPECT_THAT(Compiled("[0-9]+")->FindAll("a 12 b 345").value(),
              ElementsAre("12", "345"));
  EXPECT_THAT(
      Compiled("#### (\\-?[0-9\\.\\,]+)")->FindAll("so #### -1,200.").value(),
      ElementsAre("-1,200."));
  EXPECT_THAT(
      Compiled("(-?[$0-9.,]{2,})|(-?[0-9]+)")->FindAll("7 of $12").value(),
      ElementsAre("7", "$12"));
  EXPECT_THAT(Compiled("x*")->FindAll("axb").value(),
              ElementsAre("", "x", "", ""));
  EXPECT_THAT(Compiled("é|\\w")->FindAll("éß").value(), ElementsAre("é", "ß"));
  EXPECT_THAT(Compiled("z")->FindAll("abc").value(), IsEmpty());
}

TEST(PatternTest, RemovesAsPython) {
  EXPECT_EQ(Compiled("(?s).*#### ")->Remove("a\nb #### 12").value(), "12");
  EXPECT_EQ(Compiled(",")->Remove("1,234,567").value(), "1234567");
  EXPECT_EQ(Compiled("x*")->Remove("axxb").value(), "ab");
}

TEST(PatternTest, HostileOnesEnd) {
  const auto exponential = Compiled("(a+)+$");
  // Not "no match", which would be a wrong answer.
  const std::string text = std::string(60, 'a') + "b";
  for (const absl::Status& status :
       {exponential->FindAll(text).status(), exponential->Remove(text).status(),
        ExactMatch(text, "a", {{exponential}}).status()}) {
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("\"(a+)+$\""), HasSubstr("match limit")));
  }
  const auto wrong = Pattern::Compile("a(b");
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("a(b"));
  EXPECT_THAT(Compiled("b")
                  ->FindAll("\xff"
                            "b")
                  .value(),
              ElementsAre("b"));
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
