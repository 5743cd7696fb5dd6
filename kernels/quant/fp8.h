// SPDX-License-Identifier: Apache-2.0
//
// Matrices in 8 bits: E4M3 (Micikevicius et al., "FP8 Formats for Deep
// Learning", 2022, section 3) with a float32 scale for each row, its greatest
// magnitude / 448.
//
// Functions are thread-safe; memory is the caller's.
#ifndef CAPSTAN_KERNELS_QUANT_FP8_H_
#define CAPSTAN_KERNELS_QUANT_FP8_H_

#include <cstdint>

namespace capstan::kernels {

// The greatest magnitude of E4M3; and a row's or matrix's at least, so that
// scales aren't 0 (torchao's EPS).
constexpr float kE4m3Most = 448.0f, kLeastAmax = 1e-12f;

// Where things are in a matrix's bytes:
//   values   [rows, columns], padded to 64
//   scales   float [rows]
struct Fp8Layout {
  Fp8Layout() = default;
  Fp8Layout(int64_t rows, int64_t columns)
      : rows(rows),
        columns(columns),
        scales((rows * columns + 63) / 64 * 64),
        bytes(scales + 4 * rows) {}

  int64_t rows = 0, columns = 0;
  int64_t scales = 0;  // offset in bytes
  int64_t bytes = 0;
};

// Rounds a row of n values to the nearest, ties to even, and returns its scale,
// which isn't finite if a value isn't. A scale is at least 1e-12 / 448.
float QuantizeFp8(const float* row, int64_t n, uint8_t* out);

// What n values of a row stand for.
void DequantizeFp8(const uint8_t* values, float scale, int64_t n, float* out);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_QUANT_FP8_H_
