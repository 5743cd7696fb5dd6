// SPDX-License-Identifier: Apache-2.0
//
// The loops of tanh.h.
#include "base/simd/tanh.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // no vector crosses a call
#include "base/simd/target.h"

namespace capstan::kernels {
namespace {

#include "base/simd/simd_vector.inc"
#include "base/simd/tanh_vector.inc"

// gelu(x) = x / 2 * (1 + tanh(u)) = x * sigmoid(2 u) with u = sqrt(2 / pi) *
// (x + 0.044715 x^3).
constexpr float kTwiceRoot = 1.5957691216057308f;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

SIMD_INLINE Floats GeluGate(const Floats& x) {
  return Sigmoid(kTwiceRoot * x * (1.0f + kCubic * (x * x)));
}

template <typename T>
void GeGlu(const T* gate, const T* up, int64_t n, T* out) {
  ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
    const Floats g = load(gate + i);
    store(out + i, Round<T>(g * GeluGate(g)) * load(up + i));
  });
}

template <typename T>
void GeGluBackward(const T* gate, const T* up, int64_t n, T* d_out, T* d_gate,
                   T* d_up) {
  ForVectors(n, [&](int64_t i, auto load, auto store) SIMD_LAMBDA {
    const Floats g = load(gate + i), u = load(up + i), d = load(d_out + i);
    const Floats s = GeluGate(g);
    const Floats gelu = g * s, rounded = Round<T>(gelu);
    const Floats inner = kTwiceRoot * (1.0f + 3.0f * kCubic * (g * g));
    store(d_up + i, d * rounded);
    store(d_gate + i, Round<T>(d * u) * (s + gelu * (1.0f - s) * inner));
    store(d_out + i, rounded * u);
  });
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

}  // namespace

const TanhKernels SIMD_SYMBOL(kTanh) = {
    SIMD_NAME,
    {GeGlu<float>, GeGluBackward<float>},
    {GeGlu<Bf16>, GeGluBackward<Bf16>},
    {GeGlu<Fp16>, GeGluBackward<Fp16>},
    SoftCap,
    Multiply,
};

}  // namespace capstan::kernels
