// SPDX-License-Identifier: Apache-2.0
//
// For processors with AVX-512 (Skylake-X, Zen 4 and later).
#include "kernels/simd.h"

#ifdef __x86_64__
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define SIMD_LAMBDA __attribute__((always_inline))
#define SIMD_TABLE kSimdAvx512
#define SIMD_NAME "avx512"
#include "kernels/simd.inc"
#endif  // __x86_64__
