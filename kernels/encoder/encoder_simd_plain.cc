// SPDX-License-Identifier: Apache-2.0
//
// For any processor.
#include "base/simd/simd.h"
#include "kernels/encoder/encoder_simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define SIMD_LAMBDA __attribute__((always_inline))
#define ENCODER_TABLE kEncoderPlain
#define SIMD_NAME "plain"
#define SIMD_BYTES 16
#include "kernels/encoder/encoder_simd.inc"
