// SPDX-License-Identifier: Apache-2.0
//
// The row kernels of each instruction set, on float32, bfloat16 and float16,
// against their formulas in double precision, at lengths around the vector
// size.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "base/simd/simd.h"
#include "base/simd/simd_numbers_for_test.h"

namespace capstan::kernels {
namespace {

const std::vector<int64_t> kLengths = {1, 3, 15, 16, 17, 31, 33, 576, 1000};

template <typename T>
struct Rows {
  const RowKernels<T>& kernels;
  void Norm() const;
  void WideNorm(const std::vector<T>& x, const std::vector<T>& dy,
                const std::vector<T>& residual, int64_t n) const;
  void SwiGlu() const;
  void Rope() const;
  void CrossEntropy() const;
  void NotFinite() const;
  void AddRows() const;
};

class SimdRowsTest : public EachSimdSet {
 protected:
  template <typename F>
  void ForTypes(const F& f) const {
    {
      SCOPED_TRACE("float32");
      f(Rows<float>{simd_->fp32});
    }
    {
      SCOPED_TRACE("bfloat16");
      f(Rows<Bf16>{simd_->bf16});
    }
    SCOPED_TRACE("float16");
    f(Rows<Fp16>{simd_->fp16});
  }
};

template <typename T>
void Rows<T>::Norm() const {
  const int64_t rows = 3;
  const double eps = 1e-5;
  for (int64_t n : kLengths) {
    const auto x = Wave<T>(rows * n, 2.0, 0.3), weight = Wave<T>(n, 1.5, 1.1);
    const auto dy = Wave<T>(rows * n, 1.0, 2.2);
    const auto residual = Wave<T>(rows * n, 3.0, 0.9);
    std::vector<T> y(rows * n), again(rows * n), dx(rows * n);
    std::vector<float> rstd(rows), dw(n, 0.5f), same_dw(n, 0.5f);
    kernels.rms_norm(x.data(), weight.data(), eps, rows, n, y.data(),
                     rstd.data());
    kernels.rms_norm_again(x.data(), weight.data(), rstd.data(), rows, n,
                           again.data());
    EXPECT_TRUE(SameBits(y, again));
    kernels.rms_norm_backward(dy.data(), x.data(), weight.data(), rstd.data(),
                              residual.data(), rows, n, dx.data(), dw.data());
    const int64_t left = n / 3;
    for (const auto& [begin, end] :
         {std::pair(int64_t{0}, left), std::pair(left, n)}) {
      kernels.rms_norm_weight_gradient(dy.data() + begin, x.data() + begin,
                                       rstd.data(), rows, n, end - begin,
                                       same_dw.data() + begin);
    }
    EXPECT_TRUE(SameBits(dw, same_dw));
    WideNorm(x, dy, residual, n);
    std::vector<double> wanted_dw(n, 0.5);
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0.0, mean = 0.0;
      for (int64_t i = r * n; i < (r + 1) * n; ++i) {
        squares += std::pow(Value(x[i]), 2);
      }
      const double s = 1.0 / std::sqrt(squares / n + eps);
      for (int64_t i = 0; i < n; ++i) {
        mean += Value(dy[r * n + i]) * Value(weight[i]) * Value(x[r * n + i]) *
                s / n;
      }
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = r * n + i;
        const double h = Value(x[at]) * s, w = Value(weight[i]);
        ExpectNear(y[at], h * w, 2, 1, i);
        ExpectNear(dx[at],
                   Value(residual[at]) + s * (Value(dy[at]) * w - h * mean), 1,
                   5, i);
        wanted_dw[i] += Value(dy[at]) * h;
      }
    }
    for (int64_t i = 0; i < n; ++i) ExpectNear(dw[i], wanted_dw[i], 0, 2, i);
  }
}

// With a float32 weight, which has more digits than T: one rounding.
template <typename T>
void Rows<T>::WideNorm(const std::vector<T>& x, const std::vector<T>& dy,
                       const std::vector<T>& residual, int64_t n) const {
  const int64_t rows = 3;
  const auto weight = Wave<float>(n, 1.5, 1.1);
  std::vector<T> y(rows * n), again(rows * n), dx(rows * n);
  std::vector<float> rstd(rows), dw(n, 0.0f);
  kernels.rms_norm_wide(x.data(), weight.data(), 1e-5f, rows, n, y.data(),
                        rstd.data());
  kernels.rms_norm_again_wide(x.data(), weight.data(), rstd.data(), rows, n,
                              again.data());
  EXPECT_TRUE(SameBits(y, again));
  kernels.rms_norm_backward_wide(dy.data(), x.data(), weight.data(),
                                 rstd.data(), residual.data(), rows, n,
                                 dx.data(), dw.data());
  for (int64_t r = 0; r < rows; ++r) {
    const double s = rstd[r];
    double mean = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      mean += Value(dy[r * n + i]) * weight[i] * Value(x[r * n + i]) * s / n;
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = r * n + i;
      const double h = Value(x[at]) * s;
      ExpectNear(y[at], h * weight[i], 1, 1, i);
      ExpectNear(
          dx[at],
          Value(residual[at]) + s * (Value(dy[at]) * weight[i] - h * mean), 1,
          5, i);
    }
  }
}

TEST_P(SimdRowsTest, RmsNorm) {
  ForTypes([](const auto& rows) { rows.Norm(); });
}

template <typename T>
void Rows<T>::SwiGlu() const {
  for (int64_t n : kLengths) {
    const auto gate = Wave<T>(n, 4.0, 0), up = Wave<T>(n, 2.0, 1);
    const auto d = Wave<T>(n, 1.0, 2);
    std::vector<T> out(n), activation = d, d_gate(n), d_up(n);
    kernels.swiglu(gate.data(), up.data(), n, out.data());
    kernels.swiglu_backward(gate.data(), up.data(), n, activation.data(),
                            d_gate.data(), d_up.data());
    EXPECT_TRUE(SameBits(out, activation));
    for (int64_t i = 0; i < n; ++i) {
      const double g = Value(gate[i]), u = Value(up[i]), dy = Value(d[i]);
      const double s = 1.0 / (1.0 + std::exp(-g));
      ExpectNear(out[i], g * s * u, 2, 1, i);
      ExpectNear(d_up[i], dy * g * s, 2, 1, i);
      ExpectNear(d_gate[i], dy * u * s * (1.0 + g * (1.0 - s)), 2, 1, i);
    }
    // Outputs alias inputs.
    std::vector<T> over_gate = gate, over_up = up, over_d = d;
    kernels.swiglu_backward(over_gate.data(), over_up.data(), n, over_d.data(),
                            over_gate.data(), over_up.data());
    EXPECT_TRUE(SameBits(over_gate, d_gate));
    EXPECT_TRUE(SameBits(over_up, d_up));
  }
}

TEST_P(SimdRowsTest, SwiGlu) {
  ForTypes([](const auto& rows) { rows.SwiGlu(); });
}

template <typename T>
void Rows<T>::Rope() const {
  for (int64_t half : {1, 4, 8, 11, 16, 32, 40}) {
    const int64_t heads = 3;
    std::vector<float> c(half), s(half);
    for (int64_t i = 0; i < half; ++i) {
      c[i] = std::cos(0.1f + i);
      s[i] = std::sin(0.1f + i);
    }
    const auto x = Wave<T>(2 * half * heads, 1.0, 0.0);
    for (const float sign : {1.0f, -1.0f}) {
      std::vector<T> y = x;
      kernels.rotate(c.data(), s.data(), sign, heads, half, y.data());
      for (int64_t i = 0; i < heads * half; ++i) {
        const int64_t at = i / half * 2 * half + i % half;
        const double a = Value(x[at]), b = Value(x[at + half]);
        const double cosine = c[i % half], sine = sign * s[i % half];
        ExpectNear(y[at], a * cosine - b * sine, 1, 1, i);
        ExpectNear(y[at + half], b * cosine + a * sine, 1, 1, i);
      }
    }
  }
}

TEST_P(SimdRowsTest, Rope) {
  ForTypes([](const auto& rows) { rows.Rope(); });
}

template <typename T>
void Rows<T>::CrossEntropy() const {
  for (int64_t n : kLengths) {
    for (const float factor : {1.0f, 512.0f}) {
      const auto x = Wave<T>(n, 20.0, 0.4);
      double total = 0.0;
      for (T v : x) total += std::exp(Value(v));
      const int64_t target = n / 2;
      std::vector<T> gradient = x, kept = x;
      const double wanted = std::log(total) - Value(x[target]);
      EXPECT_NEAR(kernels.cross_entropy(kept.data(), n, target, false, factor),
                  wanted, 1e-5);
      EXPECT_TRUE(sizeof(T) == 4 || SameBits(kept, x));
      EXPECT_NEAR(
          kernels.cross_entropy(gradient.data(), n, target, true, factor),
          wanted, 1e-5);
      for (int64_t i = 0; i < n; ++i) {
        const double p = std::exp(Value(x[i])) / total - (i == target);
        ExpectNear(gradient[i], p * factor, 1, factor, i);
      }
    }
  }
}

TEST_P(SimdRowsTest, CrossEntropy) {
  ForTypes([](const auto& rows) { rows.CrossEntropy(); });
}

template <typename T>
void Rows<T>::NotFinite() const {
  const int64_t n = 40;
  T bad[2];
  if constexpr (sizeof(T) == 4) {
    bad[0] = kNan, bad[1] = kInfinity;
  } else {
    const int bits = FormatOf<T>().fraction_bits;
    bad[1].bits = static_cast<uint16_t>(0x7fff >> bits << bits);
    bad[0].bits = static_cast<uint16_t>(bad[1].bits | 1 << (bits - 1));
  }
  for (const T v : bad) {
    const auto weight = Wave<T>(n, 1.0, 0.3), other = Wave<T>(n, 1.0, 0.7);
    std::vector<T> x = Wave<T>(n, 1.0, 0.1), y(n), dx(n);
    x[37] = v;
    float rstd;
    kernels.rms_norm(x.data(), weight.data(), 1e-5f, 1, n, y.data(), &rstd);
    EXPECT_TRUE(std::isnan(Value(y[37])));
    std::vector<float> dw(n);
    rstd = 1.0f;
    kernels.rms_norm_backward(x.data(), other.data(), weight.data(), &rstd,
                              nullptr, 1, n, dx.data(), dw.data());
    EXPECT_FALSE(std::isfinite(Value(dx[37])));
    EXPECT_FALSE(std::isfinite(dw[37]));
    EXPECT_TRUE(std::isfinite(dw[36]));
    kernels.swiglu(x.data(), other.data(), n, y.data());
    EXPECT_FALSE(std::isfinite(Value(y[37])));
    EXPECT_TRUE(std::isfinite(Value(y[36])));
    std::vector<T> d = x, d_gate(n), d_up(n);
    kernels.swiglu_backward(other.data(), weight.data(), n, d.data(),
                            d_gate.data(), d_up.data());
    EXPECT_FALSE(std::isfinite(Value(d_gate[37])));
    EXPECT_FALSE(std::isfinite(Value(d_up[37])));
    std::vector<T> logits = x;
    EXPECT_FALSE(
        std::isfinite(kernels.cross_entropy(logits.data(), n, 3, true, 1.0f)));
    EXPECT_FALSE(std::isfinite(Value(logits[5])));
    const int64_t row = 0;
    std::vector<float> sum(n);
    kernels.add_rows_wide(x.data(), &row, 1, n, n, sum.data());
    EXPECT_FALSE(std::isfinite(sum[37]));
  }
}

TEST_P(SimdRowsTest, WhatIsNotFiniteShows) {
  ForTypes([](const auto& rows) { rows.NotFinite(); });
}

template <typename T>
void Rows<T>::AddRows() const {
  const std::vector<int64_t> rows = {4, 0, 2, 2, 3};
  for (int64_t n : kLengths) {
    const int64_t stride = n + 5;
    const auto x = Wave<T>(5 * stride, 1.0, 0.2);
    std::vector<float> wide(n, 0.25f);
    std::vector<T> sum(n, Make<T>(0.25));
    kernels.add_rows_wide(x.data(), rows.data(), rows.size(), stride, n,
                          wide.data());
    kernels.add_rows(x.data(), rows.data(), rows.size(), stride, n, sum.data());
    for (int64_t i = 0; i < n; ++i) {
      float wanted = 0.25f;
      for (int64_t r : rows) {
        wanted += static_cast<float>(Value(x[r * stride + i]));
      }
      EXPECT_EQ(wide[i], wanted);
      EXPECT_EQ(Value(sum[i]), Nearest<T>(wanted));
    }
    const std::vector<float> before = wide;
    kernels.add_rows_wide(x.data(), rows.data(), 0, stride, n, wide.data());
    EXPECT_EQ(wide, before);
  }
}

TEST_P(SimdRowsTest, RowsAreAddedInOrderAndRoundedOnce) {
  ForTypes([](const auto& rows) { rows.AddRows(); });
}

INSTANTIATE_TEST_SUITE_P(Sets, SimdRowsTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace capstan::kernels
