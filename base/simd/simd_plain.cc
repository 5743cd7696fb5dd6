// SPDX-License-Identifier: Apache-2.0
//
// For any processor.
#include "base/simd/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define SIMD_LAMBDA __attribute__((always_inline))
#define SIMD_TABLE kSimdPlain
#define SIMD_NAME "plain"
#define SIMD_BYTES 16
#include "base/simd/simd.inc"
