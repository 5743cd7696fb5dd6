// SPDX-License-Identifier: Apache-2.0
//
// The loops of each instruction set against their formulas in double precision.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/simd/simd.h"
#include "base/simd/simd_numbers_for_test.h"

namespace capstan::kernels {
namespace {

const std::vector<int64_t> kLengths = {1, 15, 16, 17, 33, 1000};

class TanhTest : public EachSimdSet {};

TEST_P(TanhTest, SoftCapIsAccurateNearZeroAndFarOut) {
  const float cap = 30.0f;
  for (const double size : {1e-6, 1e-2, 1.0, 18.0, 19.5, 60.0, 1e4}) {
    for (int64_t n : kLengths) {
      const std::vector<float> x = Wave<float>(n, size, 0.3);
      std::vector<float> capped = x, without = x, slope(n);
      simd_->softcap(capped.data(), n, cap, slope.data());
      simd_->softcap(without.data(), n, cap, nullptr);
      EXPECT_TRUE(SameBits(capped, without));
      for (int64_t i = 0; i < n; ++i) {
        const double t = std::tanh(x[i] / double{cap});
        EXPECT_NEAR(capped[i], cap * t, 4e-7 * std::abs(cap * t) + 1e-37)
            << x[i];
        EXPECT_NEAR(slope[i], 1.0 - t * t, 3e-7) << x[i];
      }
    }
  }
}

// A cap of 1 leaves the tangent alone.
TEST_P(TanhTest, TheTangentIsWithinTwoUlp) {
  std::vector<float> x;
  for (float v = 1e-30f; v < 200.0f; v *= 1.0007f) {
    x.push_back(v);
    x.push_back(-v);
  }
  for (float v : {0.0f, 0.625f, std::nextafter(0.625f, 0.0f), 1e30f,
                  std::numeric_limits<float>::infinity()}) {
    x.push_back(v);
    x.push_back(-v);
  }
  std::vector<float> y = x;
  simd_->softcap(y.data(), static_cast<int64_t>(y.size()), 1.0f, nullptr);
  for (size_t i = 0; i < x.size(); ++i) {
    const double wanted = std::tanh(double{x[i]});
    const float size = std::abs(static_cast<float>(wanted));
    const double ulp = double{std::nextafter(size, 2.0f)} - size;
    ASSERT_LE(std::abs(y[i] - wanted), 2.0 * ulp) << x[i];
  }
}

TEST_P(TanhTest, SoftCapOfNumbersThatAreNotFinite) {
  std::vector<float> x = {kNan, kInfinity, -kInfinity, 1.0f}, slope(4);
  simd_->softcap(x.data(), 4, 2.0f, slope.data());
  EXPECT_TRUE(std::isnan(x[0]) && std::isnan(slope[0]));
  EXPECT_EQ(x[1], 2.0f);
  EXPECT_EQ(x[2], -2.0f);
  EXPECT_NEAR(x[3], 2.0 * std::tanh(0.5), 1e-6);
}

TEST_P(TanhTest, Multiplies) {
  for (int64_t n : kLengths) {
    const std::vector<float> x = Wave<float>(n, 2.0, 0.3);
    const std::vector<float> factors = Wave<float>(n, 3.0, 1.0);
    std::vector<float> product = x;
    simd_->multiply(product.data(), factors.data(), n);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(product[i], x[i] * factors[i]);
  }
}

template <typename T>
void ExpectGeGlu(const RowKernels<T>& kernels) {
  const double root = std::sqrt(2.0 / std::acos(-1.0));
  for (int64_t n : kLengths) {
    const auto gate = Wave<T>(n, 6.0, 0.3), up = Wave<T>(n, 2.0, 1.0);
    const auto d = Wave<T>(n, 1.0, 2.0);
    std::vector<T> out(n), d_out = d, d_gate = gate, d_up = up;
    kernels.geglu(gate.data(), up.data(), n, out.data());
    kernels.geglu_backward(d_gate.data(), d_up.data(), n, d_out.data(),
                           d_gate.data(), d_up.data());
    EXPECT_TRUE(SameBits(d_out, out));
    for (int64_t i = 0; i < n; ++i) {
      const double g = Value(gate[i]), u = Value(up[i]), dy = Value(d[i]);
      const double t = std::tanh(root * (g + 0.044715 * g * g * g));
      const double gelu = 0.5 * g * (1.0 + t);
      const double slope = 0.5 * (1.0 + t) + 0.5 * g * (1.0 - t * t) * root *
                                                 (1.0 + 3 * 0.044715 * g * g);
      ExpectNear(out[i], gelu * u, 2, 1, i);
      ExpectNear(d_up[i], dy * gelu, 2, 1, i);
      ExpectNear(d_gate[i], dy * u * slope, 2, 2, i);
    }
  }
}

TEST_P(TanhTest, GeGlu) {
  ExpectGeGlu(simd_->fp32);
  ExpectGeGlu(simd_->bf16);
  ExpectGeGlu(simd_->fp16);
}

INSTANTIATE_TEST_SUITE_P(Sets, TanhTest, testing::Range(0, 4));

}  // namespace
}  // namespace capstan::kernels
