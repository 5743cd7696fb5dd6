// SPDX-License-Identifier: Apache-2.0
#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

namespace capstan {
namespace {

using Bits = std::array<uint32_t, 4>;

// Random123's examples/kat_vectors, "philox4x32 10".
TEST(RandomTest, KnownAnswers) {
  EXPECT_EQ(RandomBits(0, 0, 0),
            (Bits{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(RandomBits(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (Bits{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      RandomBits(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
      (Bits{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RandomTest, KeysDependOnSeedAndPurpose) {
  std::set<uint64_t> keys;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    for (const char* purpose : {"", "a", "b", "ab", "ba"}) {
      keys.insert(RandomKey(seed, purpose));
    }
  }
  EXPECT_EQ(keys.size(), 50);
}

TEST(RandomTest, UniformIsUniform) {
  constexpr int kCount = 100000;
  double sum = 0.0;
  double squares = 0.0;
  for (int i = 0; i < kCount; ++i) {
    const double u = RandomUniform(7, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);
  EXPECT_NEAR(squares / kCount, 1.0 / 3.0, 0.005);
}

TEST(RandomTest, BelowReachesAllValuesEvenly) {
  constexpr int kCount = 70000;
  std::vector<int> seen(7);
  for (int i = 0; i < kCount; ++i) {
    const uint64_t value = RandomBelow(3, i, 7);
    ASSERT_LT(value, 7);
    ++seen[value];
  }
  for (const int n : seen) EXPECT_NEAR(n, kCount / 7.0, 500);
  EXPECT_EQ(RandomBelow(3, 0, 1), 0);
  // Nearly half of all draws are rejected here.
  const uint64_t bound = (uint64_t{1} << 63) + 1;
  for (int i = 0; i < 100; ++i) ASSERT_LT(RandomBelow(3, i, bound), bound);
}

TEST(RandomTest, NormalHasTheRightMoments) {
  constexpr int kCount = 1 << 20;
  std::vector<float> z(kCount);
  FillNormal(11, 0, kCount, 0.0f, 1.0f, z.data());
  double moments[5] = {0, 0, 0, 0, 0};
  int beyond_two = 0;
  double neighbours = 0.0;
  double partners = 0.0;
  for (int i = 0; i < kCount; ++i) {
    ASSERT_TRUE(std::isfinite(z[i]));
    for (int k = 1; k < 5; ++k) moments[k] += std::pow(z[i], k);
    if (std::abs(z[i]) > 2.0f) ++beyond_two;
    if (i >= 1) neighbours += z[i] * z[i - 1];
    if (i >= 16) partners += z[i] * z[i - 16];
  }
  EXPECT_NEAR(moments[1] / kCount, 0.0, 0.005);
  EXPECT_NEAR(moments[2] / kCount, 1.0, 0.007);
  EXPECT_NEAR(moments[3] / kCount, 0.0, 0.02);
  EXPECT_NEAR(moments[4] / kCount, 3.0, 0.06);
  EXPECT_NEAR(static_cast<double>(beyond_two) / kCount, 0.0455, 0.001);
  EXPECT_NEAR(neighbours / kCount, 0.0, 0.005);
  EXPECT_NEAR(partners / kCount, 0.0, 0.005);
}

// The formula in double, from the bits that make the values.
TEST(RandomTest, NormalIsBoxMullerOfPhilox) {
  constexpr int64_t kLane = 5;
  constexpr double kTurn = 6.283185307179586 / 4294967296.0;
  for (int64_t group = 0; group < 2000; ++group) {
    const Bits bits = RandomBits(99, group * 16 + kLane, 1);
    float z[64];
    FillNormal(99, group * 64, 64, 0.0f, 1.0f, z);
    for (int pair = 0; pair < 2; ++pair) {
      const double u = (bits[2 * pair] + 0.5) / 4294967296.0;
      const double r = std::sqrt(-2.0 * std::log(u));
      const double angle = bits[2 * pair + 1] * kTurn;
      ASSERT_NEAR(z[32 * pair + kLane], r * std::cos(angle), 2e-6);
      ASSERT_NEAR(z[32 * pair + 16 + kLane], r * std::sin(angle), 2e-6);
    }
  }
}

TEST(RandomTest, NormalInPiecesIsTheSame) {
  constexpr int64_t kCount = 1000;
  std::vector<float> whole(kCount);
  FillNormal(5, 0, kCount, 0.5f, 2.0f, whole.data());
  for (const int64_t piece : {1, 3, 16, 63, 64, 65, 200, 999}) {
    for (const int64_t start : {0, 1, 17, 63, 64, 500}) {
      std::vector<float> parts(whole.begin(), whole.begin() + start);
      parts.resize(kCount);
      for (int64_t at = start; at < kCount; at += piece) {
        FillNormal(5, at, std::min(piece, kCount - at), 0.5f, 2.0f,
                   parts.data() + at);
      }
      ASSERT_EQ(0, std::memcmp(parts.data(), whole.data(), kCount * 4))
          << piece << " " << start;
    }
  }
  FillNormal(5, 10, 0, 0.0f, 1.0f, nullptr);
}

// Pins the bits: another processor or compiler must not change a run.
TEST(RandomTest, NormalHasTheSameBitsEverywhere) {
  constexpr int64_t kCount = 100000;
  std::vector<float> z(kCount);
  FillNormal(2024, int64_t{1} << 33, kCount, 0.0f, 0.02f, z.data());
  uint64_t hash = 0xcbf29ce484222325;
  for (const float value : z) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    hash = (hash ^ bits) * 0x100000001b3;
  }
  EXPECT_EQ(hash, 1668426503588599781u);
}

TEST(RandomTest, PermutedIndexIsAPermutation) {
  for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 1000, 4097}) {
    std::vector<bool> seen(size);
    int fixed = 0;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t p = PermutedIndex(42, i, size);
      ASSERT_GE(p, 0);
      ASSERT_LT(p, size);
      ASSERT_FALSE(seen[p]) << size;
      seen[p] = true;
      if (p == i) ++fixed;
    }
    if (size >= 1000) {
      EXPECT_LT(fixed, 10);
    }
  }
  EXPECT_NE(PermutedIndex(1, 0, 1000000), PermutedIndex(2, 0, 1000000));
  const int64_t huge = int64_t{1} << 62;
  EXPECT_LT(PermutedIndex(1, huge - 1, huge), huge);
}

// Each small permutation about equally often.
TEST(RandomTest, PermutationsOfThreeAreEven) {
  std::vector<int> seen(27);
  constexpr int kCount = 6000;
  for (int key = 0; key < kCount; ++key) {
    ++seen[PermutedIndex(key, 0, 3) * 9 + PermutedIndex(key, 1, 3) * 3 +
           PermutedIndex(key, 2, 3)];
  }
  for (const int n : seen) {
    if (n != 0) {
      EXPECT_NEAR(n, kCount / 6.0, 250);
    }
  }
}

}  // namespace
}  // namespace capstan
