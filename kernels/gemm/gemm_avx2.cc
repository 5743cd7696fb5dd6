// SPDX-License-Identifier: Apache-2.0
//
// For processors with AVX2 and FMA (Haswell, 2013, and later): of 16 registers,
// 12 hold the tile, two a line of b and one an element of a.
#include "kernels/gemm/gemm_kernels.h"

#ifdef __x86_64__
#pragma GCC target("avx2,fma")
#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define GEMM_TABLE kGemmAvx2
#define GEMM_NAME "avx2"
#define GEMM_LANES 8
#define GEMM_ROW_COUNTS 1, 2, 3, 4, 5, 6
#include "kernels/gemm/gemm_tiles.inc"
#endif  // __x86_64__
