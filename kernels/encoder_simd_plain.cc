// SPDX-License-Identifier: Apache-2.0
//
// For any processor.
#include "kernels/encoder_simd.h"
#include "kernels/simd.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // nothing here crosses a call
#define SIMD_LAMBDA __attribute__((always_inline))
#define ENCODER_TABLE kEncoderPlain
#define SIMD_NAME "plain"
#define SIMD_BYTES 16
#include "kernels/encoder_simd.inc"
