// SPDX-License-Identifier: Apache-2.0
#include "desk/generate/unmasking_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/lib/byte_tokenizer.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMask = 256;

std::vector<int64_t> Ids(const std::string& text) {
  return std::vector<int64_t>(text.begin(), text.end());
}

TEST(UnmaskingPictureTest, EachTokenHasTheColourOfItsStep) {
  const std::unique_ptr<Tokenizer> tokenizer = NewByteTokenizer();
  UnmaskingPicture picture(kMask, 2);
  std::vector<int64_t> text = Ids("ab<d\n");
  picture.Note({text[0], text[1], kMask, text[3], kMask});
  picture.Note({text[0], text[1], text[2], text[3], kMask});
  picture.Note(text);
  const std::string svg = picture.Svg(text, *tokenizer);
  // The prompt has none.
  EXPECT_THAT(svg, HasSubstr("fill=\"#888888\">a</text>"));
  EXPECT_THAT(svg, HasSubstr("<title>step 1 of 3</title></rect>\n<text"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#3b52be\"><title>step 1 of 3"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#2ea086\"><title>step 2 of 3"));
  EXPECT_THAT(svg, HasSubstr("fill=\"#f8d63e\"><title>step 3 of 3"));
  EXPECT_THAT(svg, HasSubstr(">&lt;</text>"));
  EXPECT_THAT(svg, HasSubstr(">\xe2\x8f\x8e</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("step 0")));
}

TEST(UnmaskingPictureTest, LongTextsAreWrapped) {
  const std::unique_ptr<Tokenizer> tokenizer = NewByteTokenizer();
  UnmaskingPicture picture(kMask, 0);
  const std::vector<int64_t> text = Ids(std::string(161, 'x'));
  picture.Note(text);
  const std::string svg = picture.Svg(text, *tokenizer);
  EXPECT_THAT(svg, HasSubstr("viewBox=\"0 0 720 108\""));
  EXPECT_THAT(svg, Not(HasSubstr("x=\"710.0\"")));
}

}  // namespace
}  // namespace capstan
