// SPDX-License-Identifier: Apache-2.0
#include "base/simd/instruction_set.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

constexpr uint32_t kBf16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25;
constexpr uint64_t kAvx512State = 0xe7, kTileState = 3u << 17;

int asked;
bool Grant() { return ++asked > 0; }
bool Refuse() { return ++asked < 0; }

TEST(AmxTest, IsUsedWhereTheKernelGrantsIt) {
  asked = 0;
  EXPECT_TRUE(
      AmxUsable({kBf16 | kTiles | kInt8, kAvx512State | kTileState, Grant}));
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(AmxUsable({kBf16 | kTiles, kTileState, Refuse}));
  EXPECT_EQ(asked, 2);
}

TEST(AmxTest, TheKernelIsNotAskedForWhatIsNotThere) {
  asked = 0;
  EXPECT_FALSE(AmxUsable({0, kAvx512State, Grant}));
  EXPECT_FALSE(AmxUsable({kTiles | kInt8, kTileState, Grant}));
  EXPECT_FALSE(AmxUsable({kBf16, kTileState, Grant}));
  // The system saves no tiles, or their configuration alone.
  EXPECT_FALSE(AmxUsable({kBf16 | kTiles, kAvx512State, Grant}));
  EXPECT_FALSE(AmxUsable({kBf16 | kTiles, 1u << 17, Grant}));
  EXPECT_EQ(asked, 0);
}

TEST(AmxTest, TheAnswerHolds) {
  const bool has = HasAmxProducts();
  EXPECT_EQ(HasAmxProducts(), has);
  if (has) {
    EXPECT_EQ(BestInstructionSet(), InstructionSet::kAvx512);
  }
}

}  // namespace
}  // namespace capstan
