// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>

#include "desk/generate/text_view.h"
#include "plugins/sdk/lib/byte_tokenizer.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kMask = 256;
constexpr int64_t kEnd = '$';
constexpr char kShade[] = "\xe2\x96\x91";

std::vector<int64_t> Tokens(const std::string& text) {
  std::vector<int64_t> tokens;
  for (const char c : text) {
    tokens.push_back(c == '_' ? kMask : static_cast<unsigned char>(c));
  }
  return tokens;
}

TEST(TerminalLinesTest, BreaksWhereItMust) {
  EXPECT_THAT(TerminalLines("", 4), ElementsAre(""));
  EXPECT_THAT(TerminalLines("abcdefghi", 4), ElementsAre("abcd", "efgh", "i"));
  EXPECT_THAT(TerminalLines("abcd\nef\n", 4), ElementsAre("abcd", "ef", ""));
  EXPECT_THAT(TerminalLines("a\tb", 20), ElementsAre("a       b"));
}

TEST(TerminalLinesTest, CountsCellsRatherThanBytes) {
  const std::string two = "\xe6\xbc\xa2";  // a Han character
  const std::string none = "e\xcc\x81";    // e and an accent
  EXPECT_THAT(TerminalLines(two + two + two, 4), ElementsAre(two + two, two));
  EXPECT_THAT(TerminalLines(two + two + two, 5), ElementsAre(two + two, two));
  EXPECT_THAT(TerminalLines(none + none + none, 2),
              ElementsAre(none + none, none));
  EXPECT_THAT(TerminalLines(std::string(kShade) + kShade + kShade, 2),
              ElementsAre(std::string(kShade) + kShade, kShade));
}

class MaskedTextViewTest : public testing::Test {
 protected:
  ~MaskedTextViewTest() override {
    close(reader_);
    close(writer_);
  }
  void OpenPipe() {
    int fds[2];
    ASSERT_EQ(pipe(fds), 0);
    reader_ = fds[0];
    writer_ = fds[1];
  }
  void OpenTerminal() {
    setenv("TERM", "xterm", 1);
    winsize size = {};
    size.ws_col = 10;
    size.ws_row = 24;
    ASSERT_EQ(openpty(&reader_, &writer_, nullptr, nullptr, &size), 0);
  }
  // Output since the last call, without '\r' before '\n'.
  std::string Written() {
    std::string text;
    size_t at;
    // A terminal hands on what is written to it in pieces, a little later.
    pollfd ready = {reader_, POLLIN, 0};
    do {
      char bytes[4096];
      const ssize_t count = read(reader_, bytes, sizeof(bytes));
      if (count <= 0) break;
      text.append(bytes, count);
    } while (poll(&ready, 1, /*timeout_ms=*/50) > 0);
    while ((at = text.find("\r\n")) != std::string::npos) text.erase(at, 1);
    return text;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = NewByteTokenizer();
  int reader_ = -1;
  int writer_ = -1;
};

TEST_F(MaskedTextViewTest, OnlyTheEndShowsInAFile) {
  OpenPipe();
  MaskedTextView view(writer_, tokenizer_.get(), kMask, {kEnd}, "In: ");
  view.Show(Tokens("a__"));
  view.Finish(Tokens("abc$junk"));
  EXPECT_EQ(Written(), "In: abc\n");
  EXPECT_EQ(view.Decode(Tokens("ab$")), "ab");
}

TEST_F(MaskedTextViewTest, ATerminalIsRedrawnInPlace) {
  OpenTerminal();
  MaskedTextView view(writer_, tokenizer_.get(), kMask, {kEnd}, "In: ");
  const std::string s = kShade;
  const std::string erase_two = "\x1b[1A\r\x1b[K\n\x1b[K\x1b[1A\r";
  view.Show(Tokens("____"));
  EXPECT_EQ(Written(), "\x1b[?7lIn: " + s + s + s + s + "\x1b[?7h");
  view.Show(Tokens("_b__\n_def"));
  // Redrawn from the first line; it has become two.
  EXPECT_EQ(Written(), "\x1b[?7l\r\x1b[K\rIn: " + s + "b" + s + s + "\n" + s +
                           "def\x1b[?7h");
  // Ten columns: "In: abcdef" and one more.
  view.Show(Tokens("abcdefg"));
  EXPECT_EQ(Written(), "\x1b[?7l" + erase_two + "In: abcdef\ng\x1b[?7h");
  // Text after the end is never shown.
  view.Show(Tokens("a_$__"));
  EXPECT_EQ(Written(), "\x1b[?7l" + erase_two + "In: a" + s + "\x1b[?7h");
  view.Finish(Tokens("ab$cd"));
  EXPECT_EQ(Written(), "\r\x1b[K\rIn: ab\n");
}

TEST_F(MaskedTextViewTest, AModelsTextCanNotSteerTheTerminal) {
  OpenTerminal();
  MaskedTextView view(writer_, tokenizer_.get(), kMask, {}, "");
  view.Show(Tokens("\x1b[2J"));
  EXPECT_EQ(Written(), "\x1b[?7l\xef\xbf\xbd[2J\x1b[?7h");
}

TEST_F(MaskedTextViewTest, AScreenfulAtMostIsDrawn) {
  OpenTerminal();
  MaskedTextView view(writer_, tokenizer_.get(), kMask, {}, "");
  std::string text;
  for (int i = 0; i < 30; ++i) text += std::string(1, 'a' + i % 26) + "\n";
  view.Show(Tokens(text + "end"));
  const std::string written = Written();
  EXPECT_EQ(std::count(written.begin(), written.end(), '\n'), 22);
  EXPECT_NE(written.find("\nend"), std::string::npos);
  // Masks far below the chosen tokens are scrolled out of view.
  view.Show(Tokens("first" + std::string(400, '_')));
  EXPECT_NE(Written().find("first"), std::string::npos);
}

}  // namespace
}  // namespace capstan
