// SPDX-License-Identifier: Apache-2.0
//
// Each instruction set on bfloat16 and float16 in memory: what is loaded and
// stored, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/simd/simd.h"
#include "base/simd/simd_numbers_for_test.h"

namespace capstan::kernels {
namespace {

class SimdHalfTest : public EachSimdSet {
 protected:
  template <typename T>
  void EveryNumberIsLoadedAndStored() const;
  template <typename T>
  void FloatsAreRounded() const;
  template <typename T>
  void ScalesAndRounds() const;
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
    // Often near the midpoint between two numbers.
    if (i % 4 == 1) bits = (bits & 0xffff0000u) + 0x7fffu + bits % 3;
    if (i % 4 == 2) bits = (bits & 0xffffe000u) + 0x0fffu + bits % 3;
    if (i % 4 == 3)
      bits = 0x33000000u + bits % 0x06000000u;  // small in float16
    float v;
    std::memcpy(&v, &bits, sizeof(v));
    x.push_back(v);
  }
  // Rotation by one float32 cosine, in blocks of 8 and singly.
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
  // Scaling by a norm's factor, in whole and partial vectors.
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
void SimdHalfTest::ScalesAndRounds() const {
  const std::vector<float> x = Wave<float>(131, 3.0, 0.4);
  for (int64_t n : {0, 1, 15, 16, 131}) {
    std::vector<T> y(131, T{0});
    simd_->rows<T>().scaled(x.data(), 0.3f, n, y.data());
    for (int64_t i = 0; i < 131; ++i) {
      ASSERT_EQ(Value(y[i]), i < n ? Nearest<T>(x[i] * 0.3f) : 0.0) << i;
    }
  }
}

TEST_P(SimdHalfTest, ScalesAndRounds) {
  ScalesAndRounds<Bf16>();
  ScalesAndRounds<Fp16>();
}

INSTANTIATE_TEST_SUITE_P(Sets, SimdHalfTest, testing::Values(0, 1, 2, 3));

}  // namespace
}  // namespace capstan::kernels
