// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/normalizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <random>
#include <string>

#include "text/tokenizer/unicode.h"

namespace capstan::tokenizer {
namespace {

struct Normalized {
  std::string text;
  Alignment alignment;
};

Normalized Normalize(const Normalizer& normalizer, const std::string& text) {
  Normalized result;
  RegexState state;
  if (!normalizer.Apply(text, &state, &result.text, &result.alignment)) {
    result.text = text;
    result.alignment.Keep(text.size());
  }
  return result;
}

TEST(UnicodeFormTest, ComposesAndDecomposes) {
  const auto nfc = NewUnicodeForm(UnicodeForm::kNfc);
  const auto nfd = NewUnicodeForm(UnicodeForm::kNfd);
  const auto nfkc = NewUnicodeForm(UnicodeForm::kNfkc);
  const auto nfkd = NewUnicodeForm(UnicodeForm::kNfkd);
  EXPECT_EQ(Normalize(*nfc, "xe\u0301y").text, "x\u00e9y");
  EXPECT_EQ(Normalize(*nfd, "x\u00e9y").text, "xe\u0301y");
  EXPECT_EQ(Normalize(*nfkc, "\ufb01\u00bd").text, "fi1\u20442");
  EXPECT_EQ(Normalize(*nfkd, "\u00e9\ufb01").text, "e\u0301fi");
  EXPECT_EQ(Normalize(*nfc, "\u1112\u1161\u11ab").text, "\ud55c");
  // U+FF9E combines with the kana before it, by its compatibility form only.
  EXPECT_EQ(Normalize(*nfkc, "\uff76\uff9e").text, "\u30ac");
  EXPECT_EQ(Normalize(*nfc, "\uff76\uff9e").text, "\uff76\uff9e");
}

TEST(UnicodeFormTest, PlacesAreThoseOfWhatHasChanged) {
  const auto nfc = NewUnicodeForm(UnicodeForm::kNfc);
  const Normalized made = Normalize(*nfc, "ae\u0301b");  // 5 bytes: a e 0301 b
  ASSERT_EQ(made.text,
            "a\u00e9"
            "b");
  EXPECT_EQ(made.alignment.Begin(1), 1u);
  EXPECT_EQ(made.alignment.End(3), 4u);
  EXPECT_EQ(made.alignment.Begin(3), 4u);
  EXPECT_EQ(made.alignment.End(4), 5u);
}

// Normalizing piecewise equals normalizing the whole.
TEST(UnicodeFormTest, IsUtf8procOnRandomTexts) {
  const struct {
    UnicodeForm form;
    utf8proc_uint8_t* (*reference)(const utf8proc_uint8_t*);
  } forms[] = {{UnicodeForm::kNfc, utf8proc_NFC},
               {UnicodeForm::kNfd, utf8proc_NFD},
               {UnicodeForm::kNfkc, utf8proc_NFKC},
               {UnicodeForm::kNfkd, utf8proc_NFKD}};
  std::mt19937 random(3);
  // Below this nearly everything combines with something.
  std::uniform_int_distribution<uint32_t> low(1, 0x600);
  std::uniform_int_distribution<uint32_t> kind(0, 3);
  const std::pair<uint32_t, uint32_t> blocks[] = {
      {0x900, 0x1200}, {0x1100, 0x1200}, {0x3040, 0x3190}, {0xff60, 0xffe0}};
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (int j = 0; j < 12; ++j) {
      uint32_t code = low(random);
      if (j % 3 == 2) {
        const auto [begin, end] = blocks[kind(random)];
        code = begin + random() % (end - begin);
      }
      // Newer than the reference's Unicode.
      if (IsNotNormalized(code)) code = 'a';
      AppendCharacter(code, &text);
    }
    for (const auto& [form, reference] : forms) {
      utf8proc_uint8_t* const expected =
          reference(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));
      const Normalized made = Normalize(*NewUnicodeForm(form), text);
      ASSERT_EQ(made.text, reinterpret_cast<const char*>(expected)) << text;
      EXPECT_EQ(made.alignment.End(made.text.size()), text.size());
      std::free(expected);
    }
  }
}

TEST(ReplaceTest, PlacesOfWhatIsReplacedAndWhatIsnt) {
  const Normalized made = Normalize(*NewReplace(" ", "\u2581"), "ab c");
  ASSERT_EQ(made.text,
            "ab\u2581"
            "c");
  EXPECT_EQ(made.alignment.Begin(2), 2u);
  EXPECT_EQ(made.alignment.End(5), 3u);
  EXPECT_EQ(made.alignment.Begin(5), 3u);
  EXPECT_EQ(made.alignment.End(6), 4u);
  EXPECT_EQ(Normalize(*NewReplace("aa", "b"), "aaaaa").text, "bba");
}

TEST(Utf8Test, EachMaximalPartOfAnInvalidSequenceIsReplaced) {
  // The example of the Unicode Standard, table 3-8, and a cut character.
  Alignment alignment;
  EXPECT_EQ(ToUtf8("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", &alignment),
            "\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffdA");
  EXPECT_EQ(alignment.Begin(24), 8u);
  Alignment cut;
  EXPECT_EQ(ToUtf8("x\xe2\x82", &cut), "x\ufffd");
  EXPECT_EQ(cut.End(4), 3u);
}

}  // namespace
}  // namespace capstan::tokenizer
