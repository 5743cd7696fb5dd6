// SPDX-License-Identifier: Apache-2.0
#include "kernels/quant/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace capstan::kernels {
namespace {

std::vector<float> Kept(const std::vector<float>& row) {
  std::vector<uint8_t> bytes(row.size());
  const auto n = static_cast<int64_t>(row.size());
  const float scale = QuantizeFp8(row.data(), n, bytes.data());
  std::vector<float> values(row.size());
  DequantizeFp8(bytes.data(), scale, n, values.data());
  return values;
}

TEST(Fp8QuantTest, KeepsThreeBitsOfMantissa) {
  // With a scale of 1: 448, and of each binade the nearest, ties to even.
  EXPECT_EQ(Kept({448, -448, 17, 18, 19, 1, 1.0625f, 1.1875f, 0}),
            std::vector<float>({448, -448, 16, 18, 20, 1, 1, 1.25f, 0}));
  // Below 2^-6 in steps of 2^-9.
  EXPECT_EQ(Kept({448, 0x1p-9f, 0x1p-10f, 0x1.8p-10f, 0x1.4p-8f}),
            std::vector<float>({448, 0x1p-9f, 0, 0x1p-9f, 0x1p-8f}));
  std::vector<float> row;
  for (int i = 0; i < 1000; ++i) row.push_back(std::sin(0.7f * i) * 3e-3f);
  const std::vector<float> kept = Kept(row);
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_NEAR(kept[i], row[i], std::fabs(row[i]) / 16 + 3e-3f * 0x1p-18f);
  }
}

TEST(Fp8QuantTest, ZerosStayAndWhatIsNotFiniteIsSeen) {
  EXPECT_EQ(Kept({0, 0, 0}), std::vector<float>(3, 0.0f));
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    const std::vector<float> row = {1, bad, 2};
    uint8_t bytes[3];
    EXPECT_FALSE(std::isfinite(QuantizeFp8(row.data(), 3, bytes)));
  }
}

TEST(Fp8QuantTest, AByteAValueAndAScaleARow) {
  const Fp8Layout layout(3, 50);
  EXPECT_EQ(layout.scales, 192);
  EXPECT_EQ(layout.bytes, 192 + 12);
}

}  // namespace
}  // namespace capstan::kernels
