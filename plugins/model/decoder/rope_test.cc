// SPDX-License-Identifier: Apache-2.0
//
// The frequencies that transformers 5.23.0 computes for heads of 16 channels.
#include "plugins/model/decoder/rope.h"

#include <gtest/gtest.h>

#include <vector>

namespace capstan::decoder {
namespace {

void ExpectFrequencies(const Rope& rope, int64_t length,
                       const std::vector<double>& wanted) {
  const std::vector<double> got = InverseFrequencies(rope, 16, length);
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(got[i] / wanted[i], 1.0, 5e-7) << i;
  }
}

TEST(RopeTest, DefaultAndLinear) {
  Rope rope;
  ExpectFrequencies(rope, 1,
                    {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978,
                     0.00316227786, 0.00100000005, 0.000316227786});
  rope.kind = RopeKind::kLinear;
  rope.factor = 4.0;
  ExpectFrequencies(
      rope, 1000,
      {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994,
       0.000790569466, 0.000250000012, 7.90569466e-05});
  EXPECT_EQ(DecisiveLength(rope, 10), DecisiveLength(rope, 1000));
}

TEST(RopeTest, DynamicGrowsTheBaseBeyondTheTrainedPositions) {
  Rope rope;
  rope.kind = RopeKind::kDynamic;
  rope.factor = 4.0;
  rope.trained_positions = 256;
  ExpectFrequencies(rope, 200,
                    {1, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978,
                     0.00316227786, 0.00100000005, 0.000316227786});
  ExpectFrequencies(rope, 1000,
                    {1, 0.22013101, 0.0484576598, 0.0106670344, 0.002348145,
                     0.00051689957, 0.000113785616, 2.50477442e-05});
  EXPECT_EQ(DecisiveLength(rope, 10), DecisiveLength(rope, 256));
  EXPECT_NE(DecisiveLength(rope, 257), DecisiveLength(rope, 256));
}

TEST(RopeTest, Yarn) {
  Rope rope;
  rope.kind = RopeKind::kYarn;
  rope.factor = 4.0;
  rope.trained_positions = 64;
  ExpectFrequencies(rope, 1,
                    {1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994,
                     0.000790569466, 0.000250000012, 7.90569466e-05});
  rope.theta = 1e6;
  rope.factor = 8.0;
  rope.trained_positions = 32;
  rope.beta_fast = 16.0;
  rope.beta_slow = 2.0;
  rope.truncate = false;
  ExpectFrequencies(
      rope, 1,
      {1, 0.0222284924, 0.00395284733, 0.000702926656, 0.000125000006,
       2.22284925e-05, 3.95284678e-06, 7.02926684e-07});
}

TEST(RopeTest, Llama3) {
  Rope rope;
  rope.kind = RopeKind::kLlama3;
  rope.theta = 500000.0;
  rope.factor = 8.0;
  rope.trained_positions = 32;
  ExpectFrequencies(
      rope, 1,
      {1, 0.0242403448, 0.00470075384, 0.000911583134, 0.000176776681,
       3.42810235e-05, 6.64786967e-06, 1.28917316e-06});
}

TEST(RopeTest, LongRopeHasFactorsForShortAndLongTexts) {
  Rope rope;
  rope.kind = RopeKind::kLongRope;
  rope.share = 0.5;
  rope.trained_positions = 64;
  rope.short_factors = {1.0, 1.1, 1.3, 1.7};
  rope.long_factors = {2.0, 3.0, 5.0, 9.0};
  EXPECT_EQ(rope.Channels(16), 8);
  ExpectFrequencies(rope, 64, {1, 0.0909090936, 0.0076923077, 0.000588235271});
  ExpectFrequencies(rope, 65,
                    {0.5, 0.0333333351, 0.00200000009, 0.000111111112});
  EXPECT_EQ(DecisiveLength(rope, 1), DecisiveLength(rope, 64));
  EXPECT_NE(DecisiveLength(rope, 64), DecisiveLength(rope, 65));
}

}  // namespace
}  // namespace capstan::decoder
