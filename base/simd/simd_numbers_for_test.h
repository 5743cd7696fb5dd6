// SPDX-License-Identifier: Apache-2.0
//
// For tests of the instruction sets: floating-point types by definition, and a
// fixture parameterized by set.
#ifndef CAPSTAN_BASE_SIMD_SIMD_NUMBERS_FOR_TEST_H_
#define CAPSTAN_BASE_SIMD_SIMD_NUMBERS_FOR_TEST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/simd/simd.h"

namespace capstan::kernels {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A binary floating-point type, by definition.
struct Format {
  int fraction_bits;
  int least_exponent;
  double largest;
};
template <typename T>
Format FormatOf();
template <>
inline Format FormatOf<float>() {
  return {23, -126, 0x1.fffffep127};
}
template <>
inline Format FormatOf<Bf16>() {
  return {7, -126, 0x1.fep127};
}
template <>
inline Format FormatOf<Fp16>() {
  return {10, -14, 65504.0};
}

template <typename T>
double Epsilon() {  // half the distance of two numbers from 1 on
  return std::ldexp(0.5, -FormatOf<T>().fraction_bits);
}

// `x` rounded to the type, ties to even.
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

// The value of a 16-bit number's bits.
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
inline double Value(float x) { return x; }

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
inline float Make<float>(double x) {
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

// Whether the difference is within `roundings` of the type plus float32
// arithmetic on numbers of `size`.
template <typename T>
void ExpectNear(T got, double wanted, double roundings, double size,
                int64_t i) {
  EXPECT_NEAR(Value(got), wanted,
              1.05 * roundings * Epsilon<T>() * std::abs(wanted) + 3e-6 * size +
                  std::ldexp(1.0, FormatOf<T>().least_exponent -
                                      FormatOf<T>().fraction_bits))
      << "at " << i;
}

// Parameterized by index into the sets that this processor runs, the last one
// with AVX512-BF16.
class EachSimdSet : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const SimdKernels* sets[4];
    int count = kSimd.Runnable(sets);
    if (HasBf16Products()) sets[count++] = &Simd();
    if (GetParam() >= count) {
      GTEST_SKIP() << "not on this processor";
    }
    simd_ = sets[GetParam()];
  }

  const SimdKernels* simd_ = nullptr;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_BASE_SIMD_SIMD_NUMBERS_FOR_TEST_H_
