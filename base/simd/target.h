// SPDX-License-Identifier: Apache-2.0
//
// The last include of a file of loops that tools/simd.bzl compiles once per
// instruction set: from here on the compiler may use that set. Such a file
// exports only its table, SIMD_SYMBOL(kName), and calls nothing from headers
// but intrinsics, so that no code for newer processors leaks into the program.
// Defines SIMD_BYTES (register size), SIMD_NAME, and SIMD_AVX2, SIMD_AVX512,
// SIMD_AVX512_BF16 and SIMD_AMX where their intrinsics are available.
#ifndef CAPSTAN_BASE_SIMD_TARGET_H_
#define CAPSTAN_BASE_SIMD_TARGET_H_

#if defined(SIMD_TARGET_AMX)
#include <immintrin.h>
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,amx-tile,amx-bf16")
#define SIMD_AVX2
#define SIMD_AVX512
#define SIMD_AMX
#define SIMD_BYTES 64
#define SIMD_NAME "amx"
#define SIMD_SYMBOL(name) name##Amx
#elif defined(SIMD_TARGET_AVX512BF16)
#include <immintrin.h>
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")
#define SIMD_AVX2
#define SIMD_AVX512
#define SIMD_AVX512_BF16
#define SIMD_BYTES 64
#define SIMD_NAME "avx512bf16"
#define SIMD_SYMBOL(name) name##Avx512Bf16
#elif defined(SIMD_TARGET_AVX512)
#include <immintrin.h>
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")
#define SIMD_AVX2
#define SIMD_AVX512
#define SIMD_BYTES 64
#define SIMD_NAME "avx512"
#define SIMD_SYMBOL(name) name##Avx512
#elif defined(SIMD_TARGET_AVX2)
#include <immintrin.h>
#pragma GCC target("avx2,fma,f16c")
#define SIMD_AVX2
#define SIMD_BYTES 32
#define SIMD_NAME "avx2"
#define SIMD_SYMBOL(name) name##Avx2
#else
#define SIMD_BYTES 16
#define SIMD_NAME "plain"
#define SIMD_SYMBOL(name) name##Plain
#endif

#define SIMD_INLINE inline __attribute__((always_inline))
// Goes after a lambda's parameters.
#define SIMD_LAMBDA __attribute__((always_inline))

#endif  // CAPSTAN_BASE_SIMD_TARGET_H_
