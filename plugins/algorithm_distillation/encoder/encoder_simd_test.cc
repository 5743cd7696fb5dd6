// SPDX-License-Identifier: Apache-2.0
//
// Compares each instruction set's loops with their definitions in double
// precision; encoder_block_test.cc covers the rest.
#include "plugins/algorithm_distillation/encoder/encoder_simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"

namespace capstan::kernels {
namespace {

class EncoderSimdTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const EncoderKernels* sets[3];
    if (GetParam() >= kEncoder.Runnable(sets)) {
      GTEST_SKIP() << "not on this processor";
    }
    simd_ = sets[GetParam()];
  }
  const EncoderKernels* simd_ = nullptr;
};

TEST_P(EncoderSimdTest, KeepBitsAreThoseOfTheGenerator) {
  constexpr uint64_t kKey = 0x123456789abcdef, kSample = 0xfedcba9876543210;
  constexpr uint16_t kThreshold = 20000;
  for (const auto& [first, count] :
       {std::pair<int64_t, int64_t>{0, 8}, {3, 21}, {7, 1}, {5, 0}}) {
    std::vector<uint16_t> bits(count + 1, 0xabcd);
    simd_->keep_bits(kKey, kSample, first, count, kThreshold, bits.data());
    EXPECT_EQ(bits.back(), 0xabcd);
    for (int64_t i = first * 16; i < (first + count) * 16; ++i) {
      const uint64_t counter = i / 128 * 16 + i % 32 / 2;
      const uint32_t word = RandomBits(kKey, counter, kSample)[i % 128 / 32];
      const bool keep =
          ((i % 2 == 0 ? word : word >> 16) & 0xffff) >= kThreshold;
      EXPECT_EQ(bits[i / 16 - first] >> (i % 16) & 1, keep) << i;
    }
  }
}

double Below(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

TEST_P(EncoderSimdTest, GeluIsExactTo3e7) {
  const std::vector<float> bias(16, 0.0f);
  const std::vector<uint16_t> keep(1, 0xffff);
  for (double from = -12.0; from < 12.0; from += 0.016) {
    std::vector<float> h(16), out(16), d(16, 1.0f), d_bias(16, 0.5f);
    for (int i = 0; i < 16; ++i) h[i] = static_cast<float>(from + i * 0.001);
    const std::vector<float> x = h;
    simd_->gelu(bias.data(), keep.data(), 2.0f, 1, 16, h.data(), out.data());
    EXPECT_EQ(h, x);
    simd_->gelu_backward(nullptr, 1.0f, 1, 16, h.data(), d.data(),
                         d_bias.data());
    for (int i = 0; i < 16; ++i) {
      const double at = x[i];
      EXPECT_NEAR(out[i], 2.0 * at * Below(at),
                  2.0 * (3e-7 * std::abs(at) + 1e-9));
      EXPECT_NEAR(h[i], at * Below(at), 3e-7 * std::abs(at) + 1e-9);
      const double slope =
          Below(at) + at * std::exp(-at * at / 2) / std::sqrt(2 * M_PI);
      EXPECT_NEAR(d[i], slope, 5e-7) << at;
      EXPECT_NEAR(d_bias[i], 0.5 + slope, 1e-6);
    }
  }
}

TEST_P(EncoderSimdTest, GeluOfWhatIsNoNumberIsNone) {
  const std::vector<float> bias(16, 0.0f);
  std::vector<float> h(16, 1.0f), out(16);
  h[3] = std::numeric_limits<float>::quiet_NaN();
  h[4] = std::numeric_limits<float>::infinity();
  simd_->gelu(bias.data(), nullptr, 1.0f, 1, 16, h.data(), out.data());
  EXPECT_TRUE(std::isnan(out[3]));
  EXPECT_EQ(out[4], std::numeric_limits<float>::infinity());
  EXPECT_FALSE(std::isnan(out[5]));
}

TEST_P(EncoderSimdTest, SoftmaxSeesWhatIsBefore) {
  constexpr int64_t kRows = 20, kFirst = 7, kStride = 32;
  std::vector<float> x(kRows * kStride), d(kRows * kStride);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(3.0 * std::sin(1.3 * i));
    d[i] = static_cast<float>(std::cos(0.7 * i));
  }
  std::vector<uint16_t> keep;
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t g = 0; g <= (kFirst + r) / 16; ++g) {
      keep.push_back(static_cast<uint16_t>(0x5a5a + 37 * keep.size()));
    }
  }
  ScoreRows p;
  p.rows = kRows;
  p.stride = kStride;
  p.first = kFirst;
  p.keep = keep.data();
  p.factor = 1.25f;
  std::vector<float> forward = x, backward = x, d_scores = d;
  std::vector<float> inverse(kRows), lse(kRows), delta(kRows, 0.2f);
  p.scores = forward.data();
  simd_->softmax(p, inverse.data(), lse.data());
  p.scores = backward.data();
  simd_->softmax_backward(p, lse.data(), delta.data(), 0.5f, d_scores.data());
  size_t group = 0;
  for (int64_t r = 0; r < kRows; ++r) {
    const int64_t seen = kFirst + r + 1;
    double sum = 0.0;
    for (int64_t i = 0; i < seen; ++i) sum += std::exp(x[r * kStride + i]);
    EXPECT_NEAR(lse[r], std::log(sum), 1e-5);
    for (int64_t i = 0; i < kStride; ++i) {
      const int64_t at = r * kStride + i;
      const double weight = i < seen ? std::exp(x[at]) / sum : 0.0;
      const bool kept = i < seen && (keep[group + i / 16] >> (i % 16) & 1);
      const double factor = kept ? 1.25 : 0.0;
      EXPECT_NEAR(forward[at] * inverse[r], weight * factor, 1e-6);
      EXPECT_NEAR(backward[at], weight * factor, 1e-6);
      EXPECT_NEAR(d_scores[at], weight * (factor * d[at] - 0.2) * 0.5, 1e-6);
    }
    group += (kFirst + r) / 16 + 1;
  }
}

TEST_P(EncoderSimdTest, ProductsOfAHead) {
  constexpr int64_t kRows = 11, kKeys = 21, kN = 32, kWhole = 32;
  constexpr int64_t kStride = 40;  // of rows in memory
  const auto wave = [](int64_t n, double phase) {
    std::vector<float> x(n);
    for (int64_t i = 0; i < n; ++i) {
      x[i] = static_cast<float>(std::sin(1.7 * i + phase));
    }
    return x;
  };
  const std::vector<float> q = wave(kRows * kStride, 0.0);
  const std::vector<float> k = wave(kKeys * kStride, 1.0);
  std::vector<float> transposed(kN * kWhole, 9.0f), scores(kRows * kWhole);
  simd_->transpose(k.data(), kStride, kKeys, kN, transposed.data(), kWhole);
  for (int64_t i = 0; i < kN; ++i) {
    for (int64_t j = 0; j < kWhole; ++j) {
      EXPECT_EQ(transposed[i * kWhole + j],
                j < kKeys ? k[j * kStride + i] : 0.0f);
    }
  }
  HeadProduct p = {
      kRows,  kWhole,        kN,    0.5f, q.data(), kStride, transposed.data(),
      kWhole, scores.data(), kWhole};
  simd_->scores(p);
  for (int64_t r = 0; r < kRows; ++r) {
    for (int64_t j = 0; j < kWhole; ++j) {
      double sum = 0.0;
      for (int64_t i = 0; j < kKeys && i < kN; ++i) {
        sum += 0.5 * q[r * kStride + i] * k[j * kStride + i];
      }
      EXPECT_NEAR(scores[r * kWhole + j], sum, 1e-5);
    }
  }
  std::vector<float> mixed(kRows * kStride), back(kKeys * kStride, 2.0f);
  p.columns = kKeys;
  p.a = scores.data();
  p.a_stride = kWhole;
  p.b = k.data();
  p.b_stride = kStride;
  p.out = mixed.data();
  p.out_stride = kStride;
  simd_->mix(p);
  p.b = q.data();
  p.out = back.data();
  p.factor = 1.0f;
  simd_->mix_back(p);
  for (int64_t i = 0; i < kN; ++i) {
    for (int64_t r = 0; r < kRows; ++r) {
      double sum = 0.0;
      for (int64_t j = 0; j < kKeys; ++j) {
        sum += scores[r * kWhole + j] * k[j * kStride + i];
      }
      EXPECT_NEAR(mixed[r * kStride + i], sum, 1e-4);
    }
    for (int64_t j = 0; j < kKeys; ++j) {
      double sum = 2.0;
      for (int64_t r = 0; r < kRows; ++r) {
        sum += scores[r * kWhole + j] * q[r * kStride + i];
      }
      EXPECT_NEAR(back[j * kStride + i], sum, 1e-4);
    }
  }
  EXPECT_EQ(back[kN], 2.0f) << "nothing is written beside the rows";
  p.factor = 0.0f;
  const std::vector<float> added = back;
  simd_->mix_back(p);
  EXPECT_NEAR(back[5], added[5] - 2.0f, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Sets, EncoderSimdTest, testing::Range(0, 3));

}  // namespace
}  // namespace capstan::kernels
