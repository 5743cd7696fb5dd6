// SPDX-License-Identifier: Apache-2.0
//
// For processors with AVX-512 (Skylake-X, Zen 4 and later): of 32 registers, 28
// hold the tile, two a line of b and one an element of a.
#include "kernels/gemm/gemm_kernels.h"

#ifdef __x86_64__
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define GEMM_TABLE kGemmAvx512
#define GEMM_NAME "avx512"
#define GEMM_LANES 16
#define GEMM_ROW_COUNTS 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
#include "kernels/gemm/gemm_tiles.inc"
#endif  // __x86_64__
