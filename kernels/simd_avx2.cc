// SPDX-License-Identifier: Apache-2.0
//
// For processors with AVX2 and FMA (Haswell, 2013, and later).
#include "kernels/simd.h"

#ifdef __x86_64__
#pragma GCC target("avx2,fma")
#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define SIMD_LAMBDA __attribute__((always_inline))
#define SIMD_TABLE kSimdAvx2
#define SIMD_NAME "avx2"
#include "kernels/simd.inc"
#endif  // __x86_64__
