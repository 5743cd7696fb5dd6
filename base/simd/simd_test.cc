// SPDX-License-Identifier: Apache-2.0
//
// Each instruction set against the formulas in double precision, at lengths
// around the vector size.
#include "base/simd/simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/simd/simd_numbers_for_test.h"

namespace capstan::kernels {
namespace {

std::vector<float> Wave(int64_t n, float size, float phase) {
  std::vector<float> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = size * std::sin(1.7f * i + phase);
  return x;
}

class SimdTest : public EachSimdSet {};

TEST_P(SimdTest, SwiGluIsAccurateEverywhere) {
  // Sigmoid, and thereby exp, over its whole range.
  std::vector<float> gate;
  for (float g = -100.0f; g <= 100.0f; g += 0.0137f) gate.push_back(g);
  const std::vector<float> up(gate.size(), 1.0f);
  std::vector<float> out(gate.size());
  simd_->fp32.swiglu(gate.data(), up.data(), gate.size(), out.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double g = gate[i], wanted = g / (1.0 + std::exp(-g));
    EXPECT_NEAR(out[i], wanted, 3e-7 * std::abs(wanted) + 1e-35) << g;
  }
}

TEST_P(SimdTest, SwiGluBackward) {
  for (int64_t n : {0, 1, 7, 15, 16, 17, 31, 45}) {
    const std::vector<float> gate = Wave(n, 4.0f, 0), up = Wave(n, 2.0f, 1);
    const std::vector<float> d = Wave(n, 1.0f, 2);
    std::vector<float> activation = d, d_gate(n), d_up(n);
    simd_->fp32.swiglu_backward(gate.data(), up.data(), n, activation.data(),
                                d_gate.data(), d_up.data());
    for (int64_t i = 0; i < n; ++i) {
      const double g = gate[i], s = 1.0 / (1.0 + std::exp(-g));
      EXPECT_NEAR(activation[i], g * s * up[i], 2e-6);
      EXPECT_NEAR(d_up[i], d[i] * g * s, 2e-6);
      EXPECT_NEAR(d_gate[i], d[i] * up[i] * s * (1.0 + g * (1.0 - s)), 2e-6);
    }
  }
}

TEST_P(SimdTest, RmsNormAndItsGradient) {
  for (int64_t n : {1, 5, 16, 19, 64, 77}) {
    const int64_t rows = 3;
    const double eps = 1e-5;
    const std::vector<float> x = Wave(rows * n, 2.0f, 0.3f);
    const std::vector<float> weight = Wave(n, 1.5f, 1.1f);
    const std::vector<float> dy = Wave(rows * n, 1.0f, 2.2f);
    const std::vector<float> residual = Wave(rows * n, 3.0f, 0.9f);
    std::vector<float> y(rows * n), again(rows * n), rstd(rows), dx(rows * n);
    std::vector<float> dw(n, 0.5f);
    simd_->fp32.rms_norm(x.data(), weight.data(), eps, rows, n, y.data(),
                         rstd.data());
    simd_->fp32.rms_norm_again(x.data(), weight.data(), rstd.data(), rows, n,
                               again.data());
    EXPECT_EQ(y, again);
    simd_->fp32.rms_norm_backward(dy.data(), x.data(), weight.data(),
                                  rstd.data(), residual.data(), rows, n,
                                  dx.data(), dw.data());
    std::vector<double> wanted_dw(n, 0.5);
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0.0, mean = 0.0;
      for (int64_t i = 0; i < n; ++i) squares += std::pow(x[r * n + i], 2);
      const double s = 1.0 / std::sqrt(squares / n + eps);
      for (int64_t i = 0; i < n; ++i) {
        mean += double{dy[r * n + i]} * weight[i] * x[r * n + i] * s / n;
      }
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = r * n + i;
        const double h = x[at] * s;
        EXPECT_NEAR(y[at], h * weight[i], 2e-6);
        EXPECT_NEAR(dx[at], residual[at] + s * (dy[at] * weight[i] - h * mean),
                    1e-5);
        wanted_dw[i] += dy[at] * h;
      }
    }
    for (int64_t i = 0; i < n; ++i) EXPECT_NEAR(dw[i], wanted_dw[i], 5e-6);
  }
}

TEST_P(SimdTest, RotateTurnsPairsAndBack) {
  for (int64_t half : {1, 4, 8, 11, 16, 32}) {
    const int64_t heads = 3;
    std::vector<float> c(half), s(half);
    for (int64_t i = 0; i < half; ++i) {
      c[i] = std::cos(0.1f + i);
      s[i] = std::sin(0.1f + i);
    }
    const std::vector<float> x = Wave(2 * half * heads, 1.0f, 0.0f);
    std::vector<float> y = x;
    simd_->fp32.rotate(c.data(), s.data(), 1.0f, heads, half, y.data());
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < half; ++i) {
        const int64_t at = 2 * half * h + i;
        EXPECT_NEAR(y[at], x[at] * c[i] - x[at + half] * s[i], 1e-6);
        EXPECT_NEAR(y[at + half], x[at + half] * c[i] + x[at] * s[i], 1e-6);
      }
    }
    simd_->fp32.rotate(c.data(), s.data(), -1.0f, heads, half, y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-6);
  }
}

TEST_P(SimdTest, CrossEntropyAndItsGradient) {
  for (int64_t n : {1, 2, 15, 16, 33, 512}) {
    const std::vector<float> x = Wave(n, 20.0f, 0.4f);
    double total = 0.0;
    for (float v : x) total += std::exp(double{v});
    const int64_t target = n / 2;
    std::vector<float> gradient = x, kept = x;
    const double wanted = std::log(total) - x[target];
    EXPECT_NEAR(simd_->fp32.cross_entropy(kept.data(), n, target, false, 1.0f),
                wanted, 1e-5);
    EXPECT_NEAR(
        simd_->fp32.cross_entropy(gradient.data(), n, target, true, 1.0f),
        wanted, 1e-5);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_NEAR(gradient[i], std::exp(x[i]) / total - (i == target), 2e-6);
    }
  }
}

TEST_P(SimdTest, CrossEntropyShowsWhatIsNotFinite) {
  for (float bad : {kNan, kInfinity}) {
    std::vector<float> x = Wave(40, 1.0f, 0.0f);
    x[37] = bad;
    EXPECT_FALSE(
        std::isfinite(simd_->fp32.cross_entropy(x.data(), 40, 3, false, 1.0f)));
  }
}

TEST_P(SimdTest, CausalRows) {
  const int64_t rows = 5, n = 21, stride = 32, first = 16;
  std::vector<float> scores = Wave(rows * stride, 6.0f, 0.2f);
  for (int64_t r = 0; r < rows; ++r) {  // must be ignored
    for (int64_t i = n; i < stride; ++i) scores[r * stride + i] = kNan;
  }
  std::vector<float> e = scores, p = scores, inverse(rows), lse(rows);
  simd_->causal_exp(e.data(), rows, n, stride, first, inverse.data(),
                    lse.data());
  simd_->causal_softmax(p.data(), rows, n, stride, first, lse.data());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen = std::min(n, first + r + 1);
    double total = 0.0;
    for (int64_t i = 0; i < seen; ++i) {
      total += std::exp(double{scores[r * stride + i]});
    }
    EXPECT_NEAR(lse[r], std::log(total), 1e-5);
    for (int64_t i = 0; i < stride; ++i) {
      const int64_t at = r * stride + i;
      const double wanted = i < seen ? std::exp(scores[at]) / total : 0.0;
      EXPECT_NEAR(e[at] * inverse[r], wanted, 1e-6);
      EXPECT_NEAR(p[at], wanted, 1e-6);
    }
  }
  std::vector<float> dp = Wave(rows * stride, 1.0f, 0.7f);
  const std::vector<float> before = dp, delta = Wave(rows, 0.5f, 0.1f);
  simd_->softmax_backward(p.data(), dp.data(), rows, stride, delta.data(),
                          0.25f);
  for (int64_t i = 0; i < rows * stride; ++i) {
    EXPECT_NEAR(dp[i], p[i] * (before[i] - delta[i / stride]) * 0.25f, 1e-6);
  }
}

TEST_P(SimdTest, ScaleAndDot) {
  for (int64_t n : {0, 3, 16, 33, 50}) {
    const std::vector<float> a = Wave(n, 1.0f, 0.0f), b = Wave(n, 2.0f, 0.5f);
    double wanted = 0.0;
    for (int64_t i = 0; i < n; ++i) wanted += double{a[i]} * b[i];
    EXPECT_NEAR(simd_->dot(a.data(), b.data(), n), wanted, 1e-5);
    std::vector<float> c = a;
    simd_->scale(c.data(), n, -3.0f);
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(c[i], a[i] * -3.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, SimdTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace capstan::kernels
