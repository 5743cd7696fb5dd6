// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/console.h"

#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace capstan {
namespace {

constexpr char kMark[] = "\xef\xbf\xbd";

TEST(PrintableText, KeepsTextOfAnyLanguage) {
  const std::string text =
      "int x;\n\tna\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80 \xef\xbf\xbd";
  EXPECT_EQ(PrintableText(text), text);
}

TEST(PrintableText, ReplacesWhatCouldHarmATerminal) {
  EXPECT_EQ(PrintableText("a\x1b[2Jb"), std::string("a") + kMark + "[2Jb");
  EXPECT_EQ(PrintableText(std::string("\0\r\x7f", 3)),
            std::string(kMark) + kMark + kMark);
  // U+009B, a control sequence introducer in one character.
  EXPECT_EQ(PrintableText("\xc2\x9b"), std::string(kMark) + kMark);
}

TEST(PrintableText, ReplacesBytesThatAreNoUtf8) {
  const char* const bad[] = {
      "\x80",          // a continuation alone
      "\xe2\x82",      // cut short
      "\xc0\xaf",      // overlong
      "\xe0\x80\xaf",  // overlong
      "\xed\xa0\x80",  // a surrogate
      "\xf4\x90\x80\x80",
      "\xff",
  };
  for (const std::string bytes : bad) {
    std::string marks;
    for (size_t i = 0; i < bytes.size(); ++i) marks += kMark;
    EXPECT_EQ(PrintableText("a" + bytes + "b"), "a" + marks + "b");
  }
}

TEST(Console, AFileOrPipeIsNoTerminal) {
  setenv("TERM", "xterm", /*overwrite=*/1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const Console console(ends[1]);
  EXPECT_FALSE(console.terminal());
  EXPECT_EQ(console.Columns(), 80);
  console.Write("text");
  char read_back[8] = {};
  EXPECT_EQ(read(ends[0], read_back, sizeof(read_back)), 4);
  EXPECT_STREQ(read_back, "text");
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace capstan
