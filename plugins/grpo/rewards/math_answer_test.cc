// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/math_answer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace capstan::grpo {
namespace {

constexpr double kTolerance = 1e-6;

void ExpectSame(const char* answer, const char* reference) {
  EXPECT_TRUE(SameAnswer(answer, reference, kTolerance))
      << answer << " is " << reference;
}

void ExpectOther(const char* answer, const char* reference) {
  EXPECT_FALSE(SameAnswer(answer, reference, kTolerance))
      << answer << " isn't " << reference;
}

TEST(FinalAnswerTest, ABoxComesFirst) {
  EXPECT_EQ(FinalAnswer("\\boxed{1}, so \\boxed{\\frac{3}{4}}. Or 7?"),
            "\\frac{3}{4}");
  EXPECT_EQ(FinalAnswer("\\fbox{12} #### 7"), "12");
  EXPECT_EQ(FinalAnswer("$\\boxed 5$"), "5");
  EXPECT_EQ(FinalAnswer("\\boxed{\\{1, 2\\}} 7"), "\\{1, 2\\}");
  // Cut off.
  EXPECT_EQ(FinalAnswer("it is 7: \\boxed{\\frac{3}{4}"), "");
}

TEST(FinalAnswerTest, ThenOtherMarks) {
  EXPECT_EQ(FinalAnswer("2 + 2 = 4\n#### 4\n5"), " 4");
  EXPECT_EQ(FinalAnswer("The answer is 3. No, the answer is: $x=4.5$. 6 more"),
            "$x=4.5$");
  EXPECT_EQ(FinalAnswer("He has 12 apples and gives 3,400.50 away."),
            "3,400.50");
  EXPECT_EQ(FinalAnswer("10-5"), "5");
  EXPECT_EQ(FinalAnswer("It fell to -5%, then 1,2"), "2");
  EXPECT_EQ(FinalAnswer("it is -3/4 of it"), "-3/4");
  EXPECT_EQ(FinalAnswer("I don't know."), "");
}

TEST(MathValueTest, Expressions) {
  const auto value = [](const char* text) {
    const absl::optional<MathValue> found = MathValueOf(text);
    return found.has_value() ? found->value : std::nan("");
  };
  EXPECT_EQ(value("42"), 42);
  EXPECT_EQ(value("-1,234.5"), -1234.5);
  EXPECT_EQ(value("1{,}000"), 1000);
  EXPECT_EQ(value(".5"), 0.5);
  EXPECT_EQ(value("1.5e3"), 1500);
  EXPECT_EQ(value("1.5 \\times 10^{3}"), 1500);
  EXPECT_EQ(value("\\frac34"), 0.75);
  EXPECT_EQ(value("-\\dfrac{3}{4}"), -0.75);
  EXPECT_EQ(value("2\\frac{1}{2}"), 2.5);
  EXPECT_EQ(value("2(3+4)/7"), 2);
  EXPECT_EQ(value("2^{-3}"), 0.125);
  EXPECT_NEAR(value("2\\sqrt{3}"), std::sqrt(12), 1e-12);
  EXPECT_NEAR(value("\\frac{\\pi}{2}"), std::acos(0), 1e-12);
  EXPECT_EQ(value("\\$18.90"), 18.9);
  EXPECT_EQ(value("12\\text{ cm}^2"), 12);
  EXPECT_EQ(value("5 miles/hour."), 5);
  EXPECT_EQ(value("90^\\circ"), 90);
  EXPECT_TRUE(MathValueOf("50\\%")->percent);
  for (const char* const none :
       {"", "x", "1/0", "3 or 4", "5 million", "1,2", "2+", "(3", "3)", "1 2x",
        "\\frac{1}", "inf", "nan", "0x10", "--"}) {
    EXPECT_FALSE(MathValueOf(none).has_value()) << none;
  }
}

TEST(SameAnswerTest, NumbersAreComparedAsNumbers) {
  ExpectSame("1,000", "1000");
  ExpectSame("18.00", "18");
  ExpectSame("0.5", "\\frac{1}{2}");
  ExpectSame("1/2", "\\frac12");
  ExpectSame("x = 5", "5");
  ExpectSame("50\\%", "50");
  ExpectSame("50%", "0.5");
  ExpectSame("0", "0.0");
  ExpectSame("\\sqrt{12}", "2\\sqrt3");
  ExpectSame("42 apples", "42");
  ExpectOther("0.5", "50");
  ExpectOther("0.333", "\\frac13");
  ExpectOther("-5", "5");
  ExpectOther("", "5");
  ExpectOther("", "");
  // Beyond what a double tells apart.
  ExpectOther("12345678901234567891", "12345678901234567890");
  EXPECT_TRUE(SameAnswer("0.333", "\\frac13", 0.01));
  // Relative to the reference.
  EXPECT_TRUE(SameAnswer("1000001", "1000000", 1e-5));
  EXPECT_FALSE(SameAnswer("0.000002", "0.000001", 1e-5));
}

TEST(SameAnswerTest, ListsByTheirParts) {
  ExpectSame("(0.5, 3)", "\\left(\\frac12, 3\\right)");
  ExpectSame("2, 1", "1,2");
  ExpectSame("\\{1, 2\\}", "\\{2,1\\}");
  ExpectSame("[1, 2.0)", "[1,2)");
  ExpectOther("(1,2)", "(2,1)");
  ExpectOther("[1,2]", "[1,2)");
  ExpectOther("1,1", "1,2");
  ExpectOther("1,2", "1,2,3");
}

TEST(SameAnswerTest, OthersAreComparedAsText) {
  ExpectSame("\\text{Monday}", "Monday");
  ExpectSame("$x^2 + 1$", "x^2+1");
  ExpectSame("\\tfrac{x}{2}", "\\frac{x}{2}");
  ExpectOther("x+1", "1+x+0");
  ExpectOther("Monday", "Tuesday");
}

// What models write that have gone astray.
TEST(SameAnswerTest, HostileTextsEnd) {
  for (const char* const piece :
       {"(", "{", "\\frac", "-", "9", "1,", "\\sqrt{", "a ", "^", "\\", "\xff",
        "answer is ", "\\boxed{", "1,000", "####", "{{,}}"}) {
    std::string text;
    while (text.size() < 300000) text += piece;
    const std::string answer = FinalAnswer(text);
    EXPECT_FALSE(SameAnswer(answer, "(7, \\frac{1}{2})", kTolerance)) << piece;
    EXPECT_FALSE(SameAnswer(text, "(7, 1)", kTolerance)) << piece;
    EXPECT_FALSE(SameAnswer(text.substr(0, 999), "{7, 1}", kTolerance));
  }
}

}  // namespace
}  // namespace capstan::grpo
