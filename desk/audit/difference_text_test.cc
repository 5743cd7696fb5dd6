// SPDX-License-Identifier: Apache-2.0
#include "desk/audit/difference_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace capstan {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(DifferenceTextTest, NumbersAreDecimal) {
  EXPECT_EQ(DifferenceText({7, "lr", "3f689374bc6a7efa", "3f7062 4d"}, true),
            "step 7 run again differs: the learning rate (optimizer, "
            "schedule); lr was 0.0030000000000000001 (3f689374bc6a7efa), and "
            "now it is 3f7062 4d");
  EXPECT_THAT(DifferenceText({7, "loss", "7ff8000000000000", ""}, true),
              EndsWith("loss was nan (7ff8000000000000), and now it is unset"));
}

TEST(DifferenceTextTest, DigestsAreNamedAsSuch) {
  EXPECT_THAT(DifferenceText({7, "weights", "00ab", "00ac"}, false),
              HasSubstr("; the digest of the weights was 00ab, and now it is "
                        "00ac. The run wasn't deterministic"));
  EXPECT_THAT(DifferenceText({4, kBeginning, "1", "2"}, true),
              EndsWith("the digest of the weights was 1, and now it is 2"));
}

TEST(DifferenceTextTest, ASettingIsNamedWhateverTheRunWas) {
  const std::string text =
      DifferenceText({0, "run model.hidden_size", "128", "64"}, false);
  EXPECT_EQ(text,
            "this isn't the run of the receipts: model.hidden_size was 128, "
            "and now it is 64");
}

}  // namespace
}  // namespace capstan
