// SPDX-License-Identifier: Apache-2.0
//
// Each instruction set on float32, bfloat16 and float16 in memory: what is
// loaded and stored bit for bit, and the kernels of rows against their formulas
// in double precision, at lengths around the vectors' own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "kernels/simd.h"

namespace capstan {
namespace kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const std::vector<int64_t> kLengths = {1, 3, 15, 16, 17, 31, 33, 576, 1000};

// A binary floating-point type, by definition.
struct Format {
  int fraction_bits;
  int least_exponent;
  double largest;
};
template <typename T>
Format FormatOf();
template <>
Format FormatOf<float>() {
  return {23, -126, 0x1.fffffep127};
}
template <>
Format FormatOf<Bf16>() {
  return {7, -126, 0x1.fep127};
}
template <>
Format FormatOf<Fp16>() {
  return {10, -14, 65504.0};
}

template <typename T>
double Epsilon() {  // half the distance of two numbers from 1 on
  return std::ldexp(0.5, -FormatOf<T>().fraction_bits);
}

// The nearest number of the type, ties to even.
template <typename T>
double Nearest(double x) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const Format f = FormatOf<T>();
  const int exponent = std::max(std::ilogb(x), f.least_exponent);
  const double unit = std::ldexp(1.0, exponent - f.fraction_bits);
  const double rounded = std::nearbyint(x / unit) * unit;
  if (std::abs(rounded) > f.largest) return std::copysign(kInfinity, x);
  return rounded;
}

// What the bits of a 16-bit number mean.
template <typename T>
double Value(T x) {
  const Format f = FormatOf<T>();
  const int fraction = x.bits & ((1 << f.fraction_bits) - 1);
  const int exponents = (1 << (15 - f.fraction_bits)) - 1;
  const int exponent = (x.bits >> f.fraction_bits) & exponents;
  double v = std::ldexp(fraction, f.least_exponent - f.fraction_bits);
  if (exponent == exponents) {
    v = fraction != 0 ? kNan : kInfinity;
  } else if (exponent > 0) {
    v = std::ldexp(fraction + std::ldexp(1.0, f.fraction_bits),
                   f.least_exponent + exponent - 1 - f.fraction_bits);
  }
  return (x.bits & 0x8000) != 0 ? -v : v;
}
double Value(float x) { return x; }

template <typename T>
T Make(double x) {  // x is a number of the type
  const Format f = FormatOf<T>();
  const int exponent =
      x == 0.0 ? f.least_exponent : std::max(std::ilogb(x), f.least_exponent);
  const int units =
      static_cast<int>(std::ldexp(std::abs(x), f.fraction_bits - exponent));
  const int bits = units + ((exponent - f.least_exponent) << f.fraction_bits);
  return T{static_cast<uint16_t>(bits | (std::signbit(x) ? 0x8000 : 0))};
}
template <>
float Make<float>(double x) {
  return static_cast<float>(x);
}

template <typename T>
std::vector<T> Wave(int64_t n, double size, double phase) {
  std::vector<T> x(n);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = Make<T>(Nearest<T>(size * std::sin(1.7 * i + phase)));
  }
  return x;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Near to within `roundings` of the type, and float32's arithmetic on numbers
// of `size`.
template <typename T>
void ExpectNear(T got, double wanted, double roundings, double size,
                int64_t i) {
  EXPECT_NEAR(Value(got), wanted,
              1.05 * roundings * Epsilon<T>() * std::abs(wanted) + 3e-6 * size +
                  std::ldexp(1.0, FormatOf<T>().least_exponent -
                                      FormatOf<T>().fraction_bits))
      << "at " << i;
}

template <typename T>
struct Rows {
  const RowKernels<T>& kernels;
  void Norm() const;
  void SwiGlu() const;
  void Rope() const;
  void CrossEntropy() const;
  void NotFinite() const;
  void AddRows() const;
};

class SimdHalfTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const SimdKernels* sets[3];
    if (GetParam() >= RunnableSimdKernels(sets)) {
      GTEST_SKIP() << "not on this processor";
    }
    simd_ = sets[GetParam()];
  }

  template <typename T>
  void EveryNumberIsLoadedAndStored() const;
  template <typename T>
  void FloatsAreRounded() const;

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

  const SimdKernels* simd_ = nullptr;
};

template <typename T>
void SimdHalfTest::EveryNumberIsLoadedAndStored() const {
  const RowKernels<T>& kernels = simd_->rows<T>();
  constexpr int64_t kAll = 65536 - 3;  // less three zeroes: the last vector is
  std::vector<T> x(kAll), y(kAll);     // shorter
  for (int64_t i = 0; i < kAll; ++i) x[i].bits = static_cast<uint16_t>(i + 3);
  const int64_t first = 0;
  std::vector<float> wide(kAll, 0.0f);
  kernels.add_rows_wide(x.data(), &first, 1, kAll, kAll, wide.data());
  const std::vector<T> ones(kAll, Make<T>(1.0));
  const float one = 1.0f;
  kernels.rms_norm_again(x.data(), ones.data(), &one, 1, kAll, y.data());
  for (int64_t i = 0; i < kAll; ++i) {
    const double value = Value(x[i]);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide[i])) << i;
      ASSERT_TRUE(std::isnan(Value(y[i]))) << i;
    } else {
      ASSERT_EQ(wide[i], value) << i;
      ASSERT_EQ(x[i].bits, y[i].bits);
    }
  }
}

TEST_P(SimdHalfTest, EveryNumberIsLoadedAndStored) {
  EveryNumberIsLoadedAndStored<Bf16>();
  EveryNumberIsLoadedAndStored<Fp16>();
}

template <typename T>
void SimdHalfTest::FloatsAreRounded() const {
  std::vector<float> x = {kNan,     kInfinity, -kInfinity, 65519.9f,
                          65520.0f, 3.4e38f,   1e-45f,     -0.0f};
  std::mt19937 random(7);
  for (int i = 0; i < 200000; ++i) {
    uint32_t bits = random();
    // Around the middle of two numbers, often.
    if (i % 4 == 1) bits = (bits & 0xffff0000u) + 0x7fffu + bits % 3;
    if (i % 4 == 2) bits = (bits & 0xffffe000u) + 0x0fffu + bits % 3;
    if (i % 4 == 3)
      bits = 0x33000000u + bits % 0x06000000u;  // small in float16
    float v;
    std::memcpy(&v, &bits, sizeof(v));
    x.push_back(v);
  }
  // One turns into x by cosines, which are float32; in pieces of 8 and single.
  const int64_t n = x.size() - 3;
  const std::vector<float> sines(n, 0.0f);
  std::vector<T> y(2 * n, T{0});
  std::fill(y.begin(), y.begin() + n, Make<T>(1.0));
  simd_->rows<T>().rotate(x.data(), sines.data(), 1.0f, 1, n, y.data());
  for (int64_t i = 0; i < n; ++i) {
    const double wanted = Nearest<T>(x[i]);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(Value(y[i]))) << x[i];
    } else {
      ASSERT_EQ(Value(y[i]), wanted) << x[i];
    }
  }
  // And by a norm's factor, in whole vectors and parts of one.
  const std::vector<T> ones(19, Make<T>(1.0));
  for (int64_t i = 3; i < 2000; ++i) {
    std::vector<T> row(19);
    simd_->rows<T>().rms_norm_again(ones.data(), ones.data(), &x[i], 1, 19,
                                    row.data());
    if (std::isnan(x[i])) continue;
    for (T v : row) ASSERT_EQ(Value(v), Nearest<T>(x[i]));
  }
}

TEST_P(SimdHalfTest, FloatsAreRoundedToTheNearest) {
  FloatsAreRounded<Bf16>();
  FloatsAreRounded<Fp16>();
}

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

    // The sum is rounded, and goes into the norm as any row does.
    std::vector<T> sum(rows * n), of_sum(rows * n);
    std::vector<float> rstd_of_sum(rows);
    kernels.rms_norm_add(x.data(), residual.data(), weight.data(), eps, rows, n,
                         sum.data(), y.data(), rstd.data());
    for (int64_t i = 0; i < rows * n; ++i) {
      const float exact = Value(x[i]) + Value(residual[i]);
      EXPECT_EQ(Value(sum[i]), Nearest<T>(exact));
    }
    kernels.rms_norm(sum.data(), weight.data(), eps, rows, n, of_sum.data(),
                     rstd_of_sum.data());
    EXPECT_TRUE(SameBits(y, of_sum));
    EXPECT_EQ(rstd, rstd_of_sum);
    // In place.
    std::vector<T> in_place = residual;
    kernels.rms_norm_add(x.data(), in_place.data(), weight.data(), eps, rows, n,
                         in_place.data(), of_sum.data(), rstd.data());
    EXPECT_TRUE(SameBits(in_place, sum));
    EXPECT_TRUE(SameBits(y, of_sum));
  }
}

TEST_P(SimdHalfTest, RmsNorm) {
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
    // Over its own arguments.
    std::vector<T> over_gate = gate, over_up = up, over_d = d;
    kernels.swiglu_backward(over_gate.data(), over_up.data(), n, over_d.data(),
                            over_gate.data(), over_up.data());
    EXPECT_TRUE(SameBits(over_gate, d_gate));
    EXPECT_TRUE(SameBits(over_up, d_up));
  }
}

TEST_P(SimdHalfTest, SwiGlu) {
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

TEST_P(SimdHalfTest, Rope) {
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

TEST_P(SimdHalfTest, CrossEntropy) {
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

TEST_P(SimdHalfTest, WhatIsNotFiniteShows) {
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

TEST_P(SimdHalfTest, RowsAreAddedInOrderAndRoundedOnce) {
  ForTypes([](const auto& rows) { rows.AddRows(); });
}

INSTANTIATE_TEST_SUITE_P(Sets, SimdHalfTest, testing::Values(0, 1, 2));

}  // namespace
}  // namespace kernels
}  // namespace capstan
