// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "desk/generate/text_view.h"

namespace capstan {
namespace {

TEST(TextStreamTest, CharactersComeWhole) {
  TextStream stream;
  EXPECT_EQ(stream.Add("a\xc3"), "a");
  EXPECT_EQ(stream.Add("\xa4"), "\xc3\xa4");
  EXPECT_EQ(stream.Add("\xf0\x9f"), "");
  EXPECT_EQ(stream.Add("\x98"), "");
  EXPECT_EQ(stream.Add("\x80!"), "\xf0\x9f\x98\x80!");
  EXPECT_EQ(stream.Finish(), "");
}

TEST(TextStreamTest, WhatIsNoTextIsReplaced) {
  TextStream stream;
  EXPECT_EQ(stream.Add("\xff\x80 \x1b[2J"),
            "\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd[2J");
  EXPECT_EQ(stream.Add("\xe2\x82"), "");
  EXPECT_EQ(stream.Finish(), "\xef\xbf\xbd\xef\xbf\xbd");
}

// Any cut gives the same text.
TEST(TextStreamTest, CutAnywhere) {
  const std::string text = "h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x98\x80\n";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    TextStream stream;
    std::string shown = stream.Add(text.substr(0, cut));
    shown += stream.Add(text.substr(cut));
    EXPECT_EQ(shown + stream.Finish(), text);
  }
}

}  // namespace
}  // namespace capstan
