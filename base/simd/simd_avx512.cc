// SPDX-License-Identifier: Apache-2.0
//
// For processors with AVX-512 (Skylake-X, Zen 4 and later).
#include "base/simd/simd.h"

#ifdef __x86_64__
#include <immintrin.h>

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define SIMD_LAMBDA __attribute__((always_inline))
#define SIMD_TABLE kSimdAvx512
#define SIMD_NAME "avx512"
#define SIMD_BYTES 64
#define SIMD_AVX2
#define SIMD_AVX512
#include "base/simd/simd.inc"
#endif  // __x86_64__
