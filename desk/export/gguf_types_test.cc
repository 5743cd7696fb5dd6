// SPDX-License-Identifier: Apache-2.0
#include "desk/export/gguf_types.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace capstan {
namespace {

constexpr GgufType kTypes[] = {
    GgufType::kF32,  GgufType::kF16,  GgufType::kBF16, GgufType::kQ4_0,
    GgufType::kQ5_0, GgufType::kQ5_1, GgufType::kQ8_0, GgufType::kQ4_K,
    GgufType::kQ5_K, GgufType::kQ6_K};

std::string Encoded(GgufType type, const std::vector<float>& values) {
  std::string bytes(GgufBytes(type, static_cast<int64_t>(values.size())), '?');
  ToGguf(type, values.data(), static_cast<int64_t>(values.size()), &bytes[0]);
  return bytes;
}

std::vector<float> Decoded(GgufType type, const std::string& bytes,
                           size_t count) {
  std::vector<float> values(count);
  FromGguf(type, bytes.data(), static_cast<int64_t>(count), values.data());
  return values;
}

double WorstError(GgufType type, const std::vector<float>& wanted,
                  const std::vector<float>& got) {
  double worst = 0.0;
  for (size_t i = 0; i < wanted.size(); i += GgufBlock(type)) {
    worst = std::max(worst, GgufError(type, &wanted[i], &got[i]));
  }
  return worst;
}

std::vector<float> Normal(size_t count, float deviation, float mean) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::string Bytes(const std::vector<int>& values) {
  std::string bytes;
  for (const int value : values) bytes += static_cast<char>(value);
  return bytes;
}

TEST(GgufTypesTest, BytesOfABlock) {
  // Of 32 values, or of 256: bits a value, and 16 for each scale.
  EXPECT_EQ(GgufBytes(GgufType::kQ4_0, 32), 18);
  EXPECT_EQ(GgufBytes(GgufType::kQ5_0, 32), 22);
  EXPECT_EQ(GgufBytes(GgufType::kQ5_1, 32), 24);
  EXPECT_EQ(GgufBytes(GgufType::kQ8_0, 64), 68);
  EXPECT_EQ(GgufBytes(GgufType::kQ4_K, 256), 144);
  EXPECT_EQ(GgufBytes(GgufType::kQ5_K, 256), 176);
  EXPECT_EQ(GgufBytes(GgufType::kQ6_K, 256), 210);
  EXPECT_EQ(GgufBytes(GgufType::kBF16, 5), 10);
}

// 0.5 = 0x3800 as a float16.
TEST(GgufTypesTest, Q8_0IsAScaleAndBytes) {
  std::vector<float> values(32, 0.0f);
  values[0] = 63.5f;
  values[1] = -63.5f;
  values[31] = 1.1f;
  std::string wanted = Bytes({0x00, 0x38, 127, -127});
  wanted.resize(34, '\0');
  wanted[33] = 2;
  EXPECT_EQ(Encoded(GgufType::kQ8_0, values), wanted);
}

// Value i and value i + 16 share a byte; 8 means 0; the step is the largest
// value over -8: -1 = 0xbc00.
TEST(GgufTypesTest, Q4_0IsAScaleAndHalfBytes) {
  std::vector<float> values(32, 0.0f);
  values[0] = 8.0f;
  values[1] = -7.0f;
  values[16] = 3.0f;
  values[31] = -1.0f;
  std::vector<int> wanted = {0x00, 0xbc, 0x50, 0x8f};
  wanted.resize(17, 0x88);
  wanted.push_back(0x98);
  EXPECT_EQ(Encoded(GgufType::kQ4_0, values), Bytes(wanted));
}

// Bit 4 of value i is bit i of the four bytes behind the scales.
TEST(GgufTypesTest, Q5_1HasALeastValueAndHighBits) {
  std::vector<float> values(32);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(i) + 2.0f;
  std::vector<int> wanted = {0x00, 0x3c, 0x00, 0x40, 0x00, 0x00, 0xff, 0xff};
  for (int i = 0; i < 16; ++i) wanted.push_back(i << 4 | i);
  EXPECT_EQ(Encoded(GgufType::kQ5_1, values), Bytes(wanted));
}

// Groups of 32 with 6-bit steps and offsets, in units of two float16; two
// groups share bytes. With steps g + 1 and codes 0 to 15, unit 1 / 63 * 8.
TEST(GgufTypesTest, Q4_KReadsItsGroups) {
  std::string bytes(144, '\0');
  bytes[1] = 0x3c;  // 1
  bytes[3] = 0x38;  // 0.5
  // Steps 1, 2, 3, 4, 17, 34, 51, 63 and offsets 5, 6, 7, 8, 9, 26, 43, 60.
  const int steps[8] = {1, 2, 3, 4, 17, 34, 51, 63};
  const int offsets[8] = {5, 6, 7, 8, 9, 26, 43, 60};
  for (int i = 0; i < 4; ++i) {
    bytes[4 + i] = static_cast<char>(steps[i] | steps[i + 4] >> 4 << 6);
    bytes[8 + i] = static_cast<char>(offsets[i] | offsets[i + 4] >> 4 << 6);
    bytes[12 + i] =
        static_cast<char>((steps[i + 4] & 15) | (offsets[i + 4] & 15) << 4);
  }
  for (int i = 0; i < 128; ++i) bytes[16 + i] = static_cast<char>(0xa3);
  const std::vector<float> values = Decoded(GgufType::kQ4_K, bytes, 256);
  for (int g = 0; g < 8; ++g) {
    const int code = g % 2 == 0 ? 3 : 10;
    for (int i = 0; i < 32; ++i) {
      ASSERT_EQ(values[g * 32 + i],
                static_cast<float>(steps[g] * code) - 0.5f * offsets[g])
          << g;
    }
  }
}

// 16 groups of 16 with a step of 8 bits; 4 bits of a code are in the first 128
// bytes, 2 in the next 64.
TEST(GgufTypesTest, Q6_KReadsItsGroups) {
  std::string bytes(210, '\0');
  for (int g = 0; g < 16; ++g) bytes[192 + g] = static_cast<char>(g - 8);
  bytes[209] = 0x3c;  // 1
  bytes[32] = 0x5a;   // values 32 and 96
  bytes[128] = 0x64;  // high bits of values 0, 32, 64 and 96: 0, 1, 2, 1
  const std::vector<float> values = Decoded(GgufType::kQ6_K, bytes, 256);
  EXPECT_EQ(values[0], -8 * (0 - 32));
  EXPECT_EQ(values[32], -6 * (0x1a - 32));
  EXPECT_EQ(values[64], -4 * (0x20 - 32));
  EXPECT_EQ(values[96], -2 * (0x15 - 32));
  EXPECT_EQ(values[255], 7 * (0 - 32));
}

TEST(GgufTypesTest, StaysWithinTheBounds) {
  for (const GgufType type : kTypes) {
    for (const float mean : {0.0f, 0.3f, -5.0f}) {
      for (const float deviation : {1e-6f, 0.02f, 30.0f}) {
        const std::vector<float> values = Normal(4096, deviation, mean);
        const std::vector<float> got =
            Decoded(type, Encoded(type, values), values.size());
        EXPECT_LE(WorstError(type, values, got), 1.0)
            << GgufTypeName(type) << " " << mean << " " << deviation;
      }
    }
    const std::vector<float> zeros(256, 0.0f);
    EXPECT_EQ(Decoded(type, Encoded(type, zeros), 256), zeros)
        << GgufTypeName(type);
  }
}

// Root of the mean squared error over that of normal values: what is spent on a
// value decides it. ggml's own quantisers leave 0.086, 0.043, 0.0054 of the
// first three.
TEST(GgufTypesTest, ErrorsOfNormalValues) {
  const std::vector<float> values = Normal(1 << 16, 0.02f, 0.0f);
  for (const auto& [type, most] : {std::make_pair(GgufType::kQ4_0, 0.088),
                                   std::make_pair(GgufType::kQ5_0, 0.044),
                                   std::make_pair(GgufType::kQ8_0, 0.0056),
                                   std::make_pair(GgufType::kQ4_K, 0.079),
                                   std::make_pair(GgufType::kQ5_K, 0.040),
                                   std::make_pair(GgufType::kQ6_K, 0.020)}) {
    const std::vector<float> got =
        Decoded(type, Encoded(type, values), values.size());
    double squares = 0.0, error = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      squares += values[i] * values[i];
      error += (values[i] - got[i]) * (values[i] - got[i]);
    }
    EXPECT_LT(std::sqrt(error / squares), most) << GgufTypeName(type);
  }
}

TEST(GgufTypesTest, SeesWhatIsWrong) {
  for (const GgufType type : kTypes) {
    const std::vector<float> values = Normal(256, 1.0f, 0.0f);
    std::vector<float> got = Decoded(type, Encoded(type, values), 256);
    got[3] += 8.0f;
    EXPECT_GT(WorstError(type, values, got), 1.0) << GgufTypeName(type);
    got[3] = NAN;
    EXPECT_GT(WorstError(type, values, got), 1.0) << GgufTypeName(type);
    std::vector<float> large = values;
    large[7] = INFINITY;
    if (type == GgufType::kF32 || type == GgufType::kF16 ||
        type == GgufType::kBF16) {
      continue;  // they have it
    }
    EXPECT_GT(WorstError(type, large, Decoded(type, Encoded(type, large), 256)),
              1.0)
        << GgufTypeName(type);
  }
  // Beyond float16.
  const float large = 70000.0f, got = INFINITY;
  EXPECT_GT(GgufError(GgufType::kF16, &large, &got), 1.0);
}

}  // namespace
}  // namespace capstan
