// SPDX-License-Identifier: Apache-2.0
//
// For processors with AVX2, FMA and F16C (Haswell, 2013, and later).
#include "base/simd/simd.h"
#include "datasets/darkroom/ppo_kernels.h"

#ifdef __x86_64__
#include <immintrin.h>

#pragma GCC target("avx2,fma,f16c")
#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define SIMD_LAMBDA __attribute__((always_inline))
#define PPO_TABLE kPpoAvx2
#define SIMD_NAME "avx2"
#define SIMD_BYTES 32
#define SIMD_AVX2
#include "datasets/darkroom/ppo_kernels.inc"
#endif  // __x86_64__
