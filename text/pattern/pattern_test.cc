// SPDX-License-Identifier: Apache-2.0
//
// Expected values are those of Python's re.
#include "text/pattern/pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan {
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
  for (const absl::Status& status : {exponential->FindAll(text).status(),
                                     exponential->Remove(text).status()}) {
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

}  // namespace
}  // namespace capstan
