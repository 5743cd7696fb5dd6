// SPDX-License-Identifier: Apache-2.0
//
// The loops of encoder_simd.h.
#include "base/simd/simd.h"
#include "kernels/encoder/encoder_simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#include "base/simd/target.h"

namespace capstan::kernels {
namespace {

#include "base/simd/simd_vector.inc"
#include "kernels/encoder/encoder_random.inc"

// v where the bits are set, lane by lane, else 0.
template <int kN>
SIMD_INLINE Vec<kN> Keep(const Vec<kN>& v, uint32_t bits) {
  if constexpr (!Fits(kN)) {
    return {Keep(v.low, bits), Keep(v.high, bits >> (kN / 2))};
  } else {
#ifdef SIMD_AVX512
    if constexpr (kN == 16) {
      return {(typename Register<kN>::Floats)_mm512_maskz_mov_ps(
          (__mmask16)bits, (__m512)v.v)};
    }
#endif
    using Bits = typename Register<kN>::Bits;
    constexpr uint32_t kLaneBits[] = {1,    2,    4,     8,    16,   32,
                                      64,   128,  256,   512,  1024, 2048,
                                      4096, 8192, 16384, 32768};
    const Bits lane = LoadAs<Bits>(kLaneBits);
    const Bits kept = (Bits)(((bits - Bits{}) & lane) == lane);
    return {(typename Register<kN>::Floats)((Bits)v.v & kept)};
  }
}

SIMD_INLINE Floats Dropout(const Floats& v, const uint16_t* keep, float factor,
                           int64_t i) {
  return keep == nullptr ? v : Keep(v * factor, keep[i / kLanes]);
}

void AddBias(const float* bias, int64_t rows, int64_t n, float* x) {
  for (int64_t r = 0; r < rows; ++r, x += n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      Store(x + i, Load(x + i) + Load(bias + i));
    }
  }
}

void AddRows(const float* x, int64_t rows, int64_t n, float* sum) {
  for (int64_t i = 0; i < n; i += kLanes) {
    Floats total = Load(sum + i);
    for (int64_t r = 0; r < rows; ++r) total += Load(x + r * n + i);
    Store(sum + i, total);
  }
}

SIMD_INLINE void NormRow(const AddNormRows& p, const float* sum, float mean,
                         float rstd, float* out) {
  for (int64_t i = 0; i < p.n; i += kLanes) {
    const Floats normed = (Load(sum + i) - mean) * rstd;
    Store(out + i, normed * Load(p.weight + i) + Load(p.shift + i));
  }
}

void AddNorm(const AddNormRows& p) {
  const uint16_t* keep = p.keep;
  for (int64_t r = 0; r < p.rows; ++r) {
    float* const sum = p.sum + r * p.n;
    const float* const residual = p.residual + r * p.n;
    Floats total = {};
    for (int64_t i = 0; i < p.n; i += kLanes) {
      const Floats added =
          Dropout(Load(sum + i) + Load(p.bias + i), keep, p.factor, i);
      const Floats v = Load(residual + i) + added;
      total += v;
      Store(sum + i, v);
    }
    const float mean = Sum(total) / static_cast<float>(p.n);
    Floats squares = {};
    for (int64_t i = 0; i < p.n; i += kLanes) {
      const Floats v = Load(sum + i) - mean;
      squares += v * v;
    }
    const float variance = Sum(squares) / static_cast<float>(p.n);
    p.mean[r] = mean;
    p.rstd[r] = 1.0f / __builtin_sqrtf(variance + p.eps);
    NormRow(p, sum, mean, p.rstd[r], p.out + r * p.n);
    if (keep != nullptr) keep += p.n / kLanes;
  }
}

void NormAgain(const AddNormRows& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    NormRow(p, p.sum + r * p.n, p.mean[r], p.rstd[r], p.out + r * p.n);
  }
}

// With h = (sum - mean) * rstd and g = d_out * weight:
//   d_sum = rstd * (g - mean(g) - h * mean(g * h)).
void AddNormBackward(const AddNormRows& p, const AddNormGradients& to) {
  const uint16_t* keep = p.keep;
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t at = r * p.n;
    const float mean = p.mean[r], rstd = p.rstd[r];
    Floats sum = {}, along = {};
    for (int64_t i = 0; i < p.n; i += kLanes) {
      const Floats d = Load(to.d_out + at + i);
      const Floats h = (Load(p.sum + at + i) - mean) * rstd;
      const Floats g = d * Load(p.weight + i);
      sum += g;
      along += g * h;
      Store(to.d_weight + i, Load(to.d_weight + i) + d * h);
      Store(to.d_shift + i, Load(to.d_shift + i) + d);
    }
    const float mean_g = Sum(sum) / static_cast<float>(p.n);
    const float mean_along = Sum(along) / static_cast<float>(p.n);
    for (int64_t i = 0; i < p.n; i += kLanes) {
      const Floats h = (Load(p.sum + at + i) - mean) * rstd;
      const Floats g = Load(to.d_out + at + i) * Load(p.weight + i);
      const Floats d = rstd * (g - mean_g - h * mean_along);
      Store(to.d_residual + at + i, d);
      const Floats d_product = Dropout(d, keep, p.factor, i);
      Store(to.d_product + at + i, d_product);
      Store(to.d_bias + i, Load(to.d_bias + i) + d_product);
    }
    if (keep != nullptr) keep += p.n / kLanes;
  }
}

// P(z < x), z standard normal, to 1e-7, and e^(-x^2 / 2): Abramowitz and
// Stegun, "Handbook of Mathematical Functions", 7.1.26, for erfc(|x| / sqrt 2).
struct Normal {
  Floats below, bell;
};
SIMD_INLINE Normal NormalAt(const Floats& x) {
  const Floats size =
      Map(x, [](const auto& v) SIMD_LAMBDA { return v < 0.0f ? -v : v; });
  const Floats t = 1.0f / (1.0f + size * 0.231641888f);  // 0.3275911 / sqrt 2
  Floats p = Splat(1.061405429f);
  p = p * t + -1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t + -0.284496736f;
  p = p * t + 0.254829592f;
  const Floats bell = Exp(x * x * -0.5f);
  const Floats tail = p * t * bell * 0.5f;
  return {Map(x, tail,
              [](const auto& v, const auto& q)
                  SIMD_LAMBDA { return v < 0.0f ? q : 1.0f - q; }),
          bell};
}

void Gelu(const float* bias, const uint16_t* keep, float factor, int64_t rows,
          int64_t n, float* h, float* out) {
  for (int64_t r = 0; r < rows; ++r, h += n, out += n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const Floats x = Load(h + i) + Load(bias + i);
      Store(h + i, x);
      Store(out + i, Dropout(x * NormalAt(x).below, keep, factor, i));
    }
    if (keep != nullptr) keep += n / kLanes;
  }
}

void GeluBackward(const uint16_t* keep, float factor, int64_t rows, int64_t n,
                  float* h, float* d, float* d_bias) {
  constexpr float kDensity = 0.398942280401432678f;  // 1 / sqrt(2 pi)
  for (int64_t r = 0; r < rows; ++r, h += n, d += n) {
    for (int64_t i = 0; i < n; i += kLanes) {
      const Floats x = Load(h + i);
      const Normal normal = NormalAt(x);
      Store(h + i, Dropout(x * normal.below, keep, factor, i));
      const Floats slope = normal.below + x * normal.bell * kDensity;
      const Floats dx = Dropout(Load(d + i), keep, factor, i) * slope;
      Store(d + i, dx);
      Store(d_bias + i, Load(d_bias + i) + dx);
    }
    if (keep != nullptr) keep += n / kLanes;
  }
}

#include "kernels/encoder/encoder_scores.inc"

// The bits of columns i to i + 15 of which the first `seen` are seen.
SIMD_INLINE uint32_t SeenBits(int64_t i, int64_t seen) {
  return seen - i >= kLanes ? 0xffffu : (1u << (seen - i)) - 1u;
}

void Softmax(const ScoreRows& p, float* inverse_sum, float* log_sum_exp) {
  const uint16_t* keep = p.keep;
  float* x = p.scores;
  const float lowest = -__builtin_inff();
  for (int64_t r = 0; r < p.rows; ++r, x += p.stride) {
    const int64_t seen = p.first + r + 1;
    const int64_t whole = seen / kLanes * kLanes;
    for (int64_t i = seen; i < whole + kLanes && i < p.stride; ++i) {
      x[i] = lowest;
    }
    Floats maxima = Splat(lowest);
    for (int64_t i = 0; i < seen; i += kLanes) {
      maxima = Greater(Load(x + i), maxima);
    }
    const float max = Max(maxima);
    Floats sum = {};
    int64_t i = 0;
    for (; i < seen; i += kLanes) {
      const Floats e = Keep(Exp(Load(x + i) - max), SeenBits(i, seen));
      sum += e;
      Store(x + i, Dropout(e, keep, p.factor, i));
    }
    for (; i < p.stride; i += kLanes) Store(x + i, Floats{});
    const float total = Sum(sum);
    inverse_sum[r] = 1.0f / total;
    log_sum_exp[r] = max + __builtin_logf(total);
    if (keep != nullptr) keep += (seen + kLanes - 1) / kLanes;
  }
}

void SoftmaxBackward(const ScoreRows& p, const float* log_sum_exp,
                     const float* delta, float scale, float* d) {
  const uint16_t* keep = p.keep;
  float* x = p.scores;
  for (int64_t r = 0; r < p.rows; ++r, x += p.stride, d += p.stride) {
    const int64_t seen = p.first + r + 1;
    int64_t i = 0;
    for (; i < seen; i += kLanes) {
      const Floats e =
          Keep(Exp(Load(x + i) - log_sum_exp[r]), SeenBits(i, seen));
      Store(x + i, Dropout(e, keep, p.factor, i));
      const Floats dp = Dropout(Load(d + i), keep, p.factor, i);
      Store(d + i, e * (dp - delta[r]) * scale);
    }
    for (; i < p.stride; i += kLanes) {
      Store(x + i, Floats{});
      Store(d + i, Floats{});
    }
    if (keep != nullptr) keep += (seen + kLanes - 1) / kLanes;
  }
}

}  // namespace

const EncoderKernels SIMD_SYMBOL(kEncoder) = {
    SIMD_NAME,    KeepBits,      AddBias,         AddRows,
    AddNorm,      NormAgain,     AddNormBackward, Gelu,
    GeluBackward, TransposeRows, Scores,          Mix,
    MixBack,      Softmax,       SoftmaxBackward,
};

}  // namespace capstan::kernels
