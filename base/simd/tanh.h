// SPDX-License-Identifier: Apache-2.0
//
// Loops with a hyperbolic tangent, like those of simd.h: soft-caps and GELU.
#ifndef CAPSTAN_BASE_SIMD_TANH_H_
#define CAPSTAN_BASE_SIMD_TANH_H_

#include <cstdint>
#include <type_traits>

#include "base/simd/instruction_set.h"
#include "base/simd/simd.h"

namespace capstan::kernels {

// GELU's approximation by tanh (Hendrycks & Gimpel, "Gaussian Error Linear
// Units", 2016, section 2) as the gate of an MLP, on T: float, Bf16 or Fp16.
template <typename T>
struct GeluKernels {
  // out = gelu(gate) * up, with gelu(gate) rounded to T.
  void (*geglu)(const T *gate, const T *up, int64_t n, T *out);
  // As RowKernels::swiglu_backward.
  void (*geglu_backward)(const T *gate, const T *up, int64_t n, T *d_out,
                         T *d_gate, T *d_up);
};

struct TanhKernels {
  const char *name;

  GeluKernels<float> fp32;
  GeluKernels<Bf16> bf16;
  GeluKernels<Fp16> fp16;

  // x = cap * tanh(x / cap). slope: its derivative there; may be null.
  void (*softcap)(float *x, int64_t n, float cap, float *slope);
  // x *= factors.
  void (*multiply)(float *x, const float *factors, int64_t n);

  // The loops for T.
  template <typename T>
  const GeluKernels<T> &gelu() const {
    if constexpr (std::is_same_v<T, float>) {
      return fp32;
    } else if constexpr (std::is_same_v<T, Bf16>) {
      return bf16;
    } else {
      return fp16;
    }
  }
};

SIMD_TABLES(TanhKernels, kTanh);

// The best for this processor.
inline const TanhKernels &TanhLoops() { return kTanh.best(); }

}  // namespace capstan::kernels

#endif  // CAPSTAN_BASE_SIMD_TANH_H_
