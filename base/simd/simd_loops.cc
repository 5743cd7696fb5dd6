// SPDX-License-Identifier: Apache-2.0
//
// The loops of simd.h.
#include "base/simd/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call
#include "base/simd/target.h"

namespace capstan::kernels {
namespace {

#include "base/simd/simd_rows.inc"

SIMD_INLINE int64_t Visible(int64_t row, int64_t n, int64_t first) {
  return first + row + 1 < n ? first + row + 1 : n;
}

// v in lanes with lane + offset < `seen`, `other` elsewhere.
SIMD_INLINE Floats Where(int64_t offset, int64_t seen, const Floats& v,
                         float other) {
  constexpr float kNumbers[] = {0, 1, 2,  3,  4,  5,  6,  7,
                                8, 9, 10, 11, 12, 13, 14, 15};
  const float end = static_cast<float>(seen - offset);
  return Map(v, Load(kNumbers),
             [=](const auto& x, const auto& lane) SIMD_LAMBDA {
               return lane < end ? x : other - decltype(x - x){};
             });
}

SIMD_INLINE void Zero(float* x, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i += kLanes) Store(x + i, Floats{});
}

void CausalExp(float* x, int64_t rows, int64_t n, int64_t stride, int64_t first,
               float* inverse_sum, float* log_sum_exp) {
  const float lowest = -__builtin_inff();
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    const int64_t seen = Visible(r, n, first);
    const int64_t whole = seen / kLanes * kLanes;
    Floats maxima = Splat(lowest);
    int64_t i = 0;
    for (; i < whole; i += kLanes) maxima = Greater(Load(x + i), maxima);
    if (i < seen) {
      maxima = Greater(Where(i, seen, Load(x + i), lowest), maxima);
    }
    const float max = Max(maxima);
    Floats sum = {};
    for (i = 0; i < whole; i += kLanes) {
      const Floats e = Exp(Load(x + i) - max);
      sum += e;
      Store(x + i, e);
    }
    if (i < seen) {
      const Floats e = Where(i, seen, Exp(Load(x + i) - max), 0.0f);
      sum += e;
      Store(x + i, e);
      i += kLanes;
    }
    Zero(x, i, stride);
    const float total = Sum(sum);
    inverse_sum[r] = 1.0f / total;
    log_sum_exp[r] = max + __builtin_logf(total);
  }
}

void CausalSoftmax(float* x, int64_t rows, int64_t n, int64_t stride,
                   int64_t first, const float* log_sum_exp) {
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    const int64_t seen = Visible(r, n, first);
    int64_t i = 0;
    for (; i + kLanes <= seen; i += kLanes) {
      Store(x + i, Exp(Load(x + i) - log_sum_exp[r]));
    }
    if (i < seen) {
      Store(x + i, Where(i, seen, Exp(Load(x + i) - log_sum_exp[r]), 0.0f));
      i += kLanes;
    }
    Zero(x, i, stride);
  }
}

void SoftmaxBackward(const float* p, float* dp, int64_t rows, int64_t stride,
                     const float* delta, float scale) {
  for (int64_t r = 0; r < rows; ++r, p += stride, dp += stride) {
    for (int64_t i = 0; i < stride; i += kLanes) {
      Store(dp + i, Load(p + i) * (Load(dp + i) - delta[r]) * scale);
    }
  }
}

void Scale(float* x, int64_t n, float factor) {
  ForVectors(n, [&](int64_t i, auto load, auto store)
                    SIMD_LAMBDA { store(x + i, load(x + i) * factor); });
}

template <typename T>
constexpr RowKernels<T> RowTable() {
  return {RmsNorm<T>,         RmsNormAgain<T>,
          RmsNormBackward<T>, RmsNormWeightGradient<T>,
          Rotate<T>,          SwiGlu<T>,
          SwiGluBackward<T>,  CrossEntropy<T>,
          AddRows<T, T>,      AddRows<T, float>};
}

}  // namespace

const SimdKernels SIMD_SYMBOL(kSimd) = {
    SIMD_NAME,  RowTable<float>(), RowTable<Bf16>(), RowTable<Fp16>(),
    CausalExp,  CausalSoftmax,     SoftmaxBackward,  Scale,
    Dot<float>,
};

}  // namespace capstan::kernels
