// SPDX-License-Identifier: Apache-2.0
//
// The loops of simd.h.
#include "base/simd/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call
#include "base/simd/target.h"

namespace capstan::kernels {
namespace {

#include "base/simd/simd_vector.inc"
#include "base/simd/tanh_vector.inc"

template <typename T>
float Dot(const T* a, const T* b, int64_t n) {
  // Two accumulators break the dependency chain.
  Floats even = {}, odd = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even += Load(a + i) * Load(b + i);
    odd += Load(a + i + kLanes) * Load(b + i + kLanes);
  }
  ForVectors(n - i, [&](int64_t j, auto load, auto) SIMD_LAMBDA {
    even += load(a + i + j) * load(b + i + j);
  });
  return Sum(even + odd);
}

// y may be x. W: the weight's type, T or float.
template <typename T, typename W>
SIMD_INLINE void NormRow(const T* x, const W* weight, float rstd, int64_t n,
                         T* y) {
  ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
    store(y + i, Round<W>(load(x + i) * rstd) * load(weight + i));
  });
}

template <typename T, typename W>
void RmsNorm(const T* x, const W* weight, float eps, int64_t rows, int64_t n,
             T* y, float* rstd) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    rstd[r] = 1.0f / __builtin_sqrtf(Dot(x, x, n) / n + eps);
    NormRow(x, weight, rstd[r], n, y);
  }
}

template <typename T, typename W>
void RmsNormAgain(const T* x, const W* weight, const float* rstd, int64_t rows,
                  int64_t n, T* y) {
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    NormRow(x, weight, rstd[r], n, y);
  }
}

// With h = x * rstd and g = dy * weight: dx = rstd * (g - h * mean(g * h)),
// dweight = sum over rows of dy * h.
template <typename T, typename W>
void RmsNormBackward(const T* dy, const T* x, const W* weight,
                     const float* rstd, const T* residual, int64_t rows,
                     int64_t n, T* dx, float* dweight) {
  for (int64_t r = 0; r < rows; ++r, dy += n, x += n, dx += n) {
    const float s = rstd[r];
    Floats sum = {};
    ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
      const Floats dyh = load(dy + i) * load(x + i) * s;
      sum += dyh * load(weight + i);
      if (dweight != nullptr) store(dweight + i, load(dweight + i) + dyh);
    });
    const float mean = Sum(sum) / n;
    ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
      const Floats g = load(dy + i) * load(weight + i);
      const Floats along = load(x + i) * s * mean;
      Floats d = s * (g - along);
      if (residual != nullptr) d += load(residual + i);
      store(dx + i, d);
    });
    if (residual != nullptr) residual += n;
  }
}

template <typename T>
void RmsNormWeightGradient(const T* dy, const T* x, const float* rstd,
                           int64_t rows, int64_t stride, int64_t n,
                           float* dweight) {
  for (int64_t r = 0; r < rows; ++r, dy += stride, x += stride) {
    const float s = rstd[r];
    ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
      const Floats dyh = Unfused(load(dy + i) * load(x + i) * s);
      store(dweight + i, load(dweight + i) + dyh);
    });
  }
}

template <typename T>
void Rotate(const float* cosines, const float* sines, float sign, int64_t heads,
            int64_t half, T* x) {
  for (int64_t h = 0; h < heads; ++h, x += 2 * half) {
    const auto rotate = [=](auto load, auto store, int64_t i) SIMD_LAMBDA {
      const auto c = load(cosines + i), s = load(sines + i) * sign;
      const auto a = load(x + i), b = load(x + half + i);
      const auto ac = a * c, bs = b * s, bc = b * c, as = a * s;
      store(x + i, ac - bs);
      store(x + half + i, bc + as);
    };
    int64_t i = 0;
    // By 8, as a small head's half may be just that.
    for (; i + 8 <= half; i += 8) {
      rotate([](const auto* p) SIMD_LAMBDA { return LoadVector<8>(p); },
             [](auto* p, const auto& v) SIMD_LAMBDA { StoreVector(p, v); }, i);
    }
    for (; i < half; ++i) {
      rotate([](const auto* p) SIMD_LAMBDA { return LoadOne(p); },
             [](auto* p, float v) SIMD_LAMBDA { StoreOne(p, v); }, i);
    }
  }
}

// The activations of a gate: g times a share of it.
struct Silu {
  static SIMD_INLINE Floats Share(const Floats& g) { return Sigmoid(g); }
  // The derivative of g * share.
  static SIMD_INLINE Floats Slope(const Floats& /*g*/, const Floats& share,
                                  const Floats& product) {
    return share + product * (1.0f - share);
  }
};

// gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2 u) with u = sqrt(2 / pi) *
// (x + 0.044715 x^3).
struct Gelu {
  static constexpr float kTwiceRoot = 1.5957691216057308f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;

  static SIMD_INLINE Floats Share(const Floats& g) {
    return Sigmoid(kTwiceRoot * g * (1.0f + kCubic * (g * g)));
  }
  static SIMD_INLINE Floats Slope(const Floats& g, const Floats& share,
                                  const Floats& product) {
    const Floats inner = kTwiceRoot * (1.0f + 3.0f * kCubic * (g * g));
    return share + product * (1.0f - share) * inner;
  }
};

template <typename T, typename Activation>
void Gate(const T* gate, const T* up, int64_t n, T* out) {
  ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
    const Floats g = load(gate + i);
    store(out + i, Round<T>(g * Activation::Share(g)) * load(up + i));
  });
}

template <typename T, typename Activation>
void GateBackward(const T* gate, const T* up, int64_t n, T* d_out, T* d_gate,
                  T* d_up) {
  ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
    const Floats g = load(gate + i), u = load(up + i), d = load(d_out + i);
    const Floats s = Activation::Share(g);
    const Floats product = g * s, rounded = Round<T>(product);
    store(d_up + i, d * rounded);
    store(d_gate + i, Round<T>(d * u) * Activation::Slope(g, s, product));
    store(d_out + i, rounded * u);
  });
}

template <typename T>
SIMD_INLINE float RowMax(const T* x, int64_t n) {
  const float lowest = -__builtin_inff();
  Floats m = Splat(lowest);
  ForVectors(n, [&](int64_t i, auto load, auto) SIMD_LAMBDA {
    const Floats v = load(x + i, lowest);
    m = Greater(v, m);
  });
  return Max(m);
}

template <typename T>
float CrossEntropy(T* x, int64_t n, int64_t target, bool gradient,
                   float factor) {
  // float32 keeps the exponentials for the gradient; 16 bits can't represent
  // them, so there they are computed twice.
  constexpr bool kKeep = sizeof(T) == sizeof(float);
  const float max = RowMax(x, n);
  const float at_target = LoadOne(x + target);
  Floats sum = {};
  const float lowest = -__builtin_inff();
  ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
    const Floats e = Exp(load(x + i, lowest) - max);
    sum += e;
    if (kKeep && gradient) store(x + i, e);
  });
  // Includes exp(-87) per lane beyond the end: negligible.
  const float total = Sum(sum);
  if (gradient) {
    const float inverse = 1.0f / total;
    ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
      const Floats v = load(x + i);
      store(x + i, (kKeep ? v : Exp(v - max)) * inverse * factor);
    });
    if (kKeep) {
      StoreOne(x + target, LoadOne(x + target) - factor);
    } else {
      const Floats p = Exp(Splat(at_target) - max) * inverse;
      StorePart(x + target, 1, (p - 1.0f) * factor);
    }
  }
  return (max - at_target) + __builtin_logf(total);
}

template <typename T, typename Out>
void AddRows(const T* x, const int64_t* rows, int64_t count, int64_t stride,
             int64_t n, Out* sum) {
  // Keeps some columns' sums in registers across all rows.
  constexpr int64_t kBlock = 4;
  int64_t i = 0;
  for (; i + kBlock * kLanes <= n; i += kBlock * kLanes) {
    Floats sums[kBlock];
    for (int64_t b = 0; b < kBlock; ++b) sums[b] = Load(sum + i + b * kLanes);
    for (int64_t r = 0; r < count; ++r) {
      const T* row = x + rows[r] * stride + i;
      for (int64_t b = 0; b < kBlock; ++b) sums[b] += Load(row + b * kLanes);
    }
    for (int64_t b = 0; b < kBlock; ++b) Store(sum + i + b * kLanes, sums[b]);
  }
  ForVectors(n - i, [&](int64_t j, auto load, auto store) SIMD_LAMBDA {
    Floats one = load(sum + i + j);
    for (int64_t r = 0; r < count; ++r) {
      one += load(x + rows[r] * stride + i + j);
    }
    store(sum + i + j, one);
  });
}

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

void SoftCap(float* x, int64_t n, float cap, float* slope) {
  const float inverse = 1.0f / cap;
  ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
    const Floats t = Tanh(load(x + i) * inverse);
    store(x + i, t * cap);
    if (slope != nullptr) store(slope + i, 1.0f - t * t);
  });
}

void Multiply(float* x, const float* factors, int64_t n) {
  ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
    store(x + i, load(x + i) * load(factors + i));
  });
}

void Scale(float* x, int64_t n, float factor) {
  ForVectors(n, [&](int64_t i, auto load, auto store)
                    SIMD_LAMBDA { store(x + i, load(x + i) * factor); });
}

template <typename T>
void Scaled(const float* x, float factor, int64_t n, T* y) {
  ForVectors(n, [&](int64_t i, auto load, auto store)
                    SIMD_LAMBDA { store(y + i, load(x + i) * factor); });
}

template <typename T>
constexpr RowKernels<T> RowTable() {
  return {RmsNorm<T, T>,
          RmsNormAgain<T, T>,
          RmsNormBackward<T, T>,
          RmsNormWeightGradient<T>,
          RmsNorm<T, float>,
          RmsNormAgain<T, float>,
          RmsNormBackward<T, float>,
          Rotate<T>,
          Gate<T, Silu>,
          GateBackward<T, Silu>,
          Gate<T, Gelu>,
          GateBackward<T, Gelu>,
          CrossEntropy<T>,
          AddRows<T, T>,
          AddRows<T, float>,
          Scaled<T>};
}

}  // namespace

const SimdKernels SIMD_SYMBOL(kSimd) = {
    SIMD_NAME, RowTable<float>(), RowTable<Bf16>(), RowTable<Fp16>(),
    CausalExp, CausalSoftmax,     SoftmaxBackward,  SoftCap,
    Scale,     Multiply,          Dot<float>,
};

}  // namespace capstan::kernels
