// SPDX-License-Identifier: Apache-2.0
//
// NF4: four bits a value (Dettmers et al., "QLoRA: Efficient Finetuning of
// Quantized LLMs", 2023, section 3), packed as bitsandbytes packs it. The
// values of a matrix, row after row, are cut into blocks of 64; each is the
// block's scale (the largest magnitude in it) times one of 16 numbers. The
// first value of a byte is in its upper half. With double quantisation a scale
// is 8 bits: one of 256 numbers times the scale of its group of 256 blocks,
// plus an offset that all have in common.
//
// Functions are thread-safe; memory is the caller's.
#ifndef CAPSTAN_KERNELS_QUANT_NF4_H_
#define CAPSTAN_KERNELS_QUANT_NF4_H_

#include <cstdint>

#include "base/simd/instruction_set.h"

namespace capstan::kernels {

constexpr int64_t kNf4Block = 64;   // values with one scale
constexpr int64_t kNf4Group = 256;  // blocks with one scale of scales

// The numbers that four bits stand for: quantiles of a normal distribution,
// scaled to [-1, 1], and an exact 0 (QLoRA, appendix E).
constexpr float kNf4Values[16] = {
    -1.0f,           -0x1.647362p-1f, -0x1.0cd660p-1f, -0x1.946540p-2f,
    -0x1.23449ap-2f, -0x1.7a6a7ep-3f, -0x1.74f0e2p-4f, 0.0f,
    0x1.45f5fep-4f,  0x1.4995c6p-3f,  0x1.f809bap-3f,  0x1.5a0674p-2f,
    0x1.c34970p-2f,  0x1.200f56p-1f,  0x1.722766p-1f,  1.0f};

// Value i + 1 is nearer than value i from kNf4Limits[i] on, by differences
// rounded to float32 as bitsandbytes compares them.
constexpr float kNf4Limits[15] = {
    -0x1.b239b0p-1f, -0x1.38a4e0p-1f, -0x1.d708fep-2f, -0x1.5bd4ecp-2f,
    -0x1.e079d8p-3f, -0x1.1a7176p-3f, -0x1.74f0e0p-5f, 0x1.45f600p-5f,
    0x1.ec90c6p-4f,  0x1.a0cfc2p-3f,  0x1.2b05aap-2f,  0x1.8ea7f4p-2f,
    0x1.00da08p-1f,  0x1.491b60p-1f,  0x1.b913b4p-1f};

// The 256 numbers of a double-quantised scale, ascending: seven binades of
// decimal exponents (Dettmers, "8-Bit Approximations for Parallelism in Deep
// Learning", 2016, "dynamic tree"), as bitsandbytes' create_dynamic_map makes
// them.
const float* DynamicValues();

// Where things are in a packed matrix's bytes:
//   nibbles                   ceil(numel / 2), padded to 64
//   plain: float scales       [blocks]
//   double: float offset, float group_scales[groups], uint8 scales[blocks]
// That is 0.5625 bytes a value, or 0.516.
struct Nf4Layout {
  Nf4Layout() = default;
  Nf4Layout(int64_t numel, bool double_quantised);

  int64_t numel = 0;
  bool double_quantised = false;
  int64_t blocks = 0;
  int64_t groups = 0;   // 0: plain
  int64_t nibbles = 0;  // bytes, without the padding
  // Offsets in bytes, and the length.
  int64_t offset = 0;        // double only
  int64_t group_scales = 0;  // double only
  int64_t scales = 0;
  int64_t bytes = 0;
};

// A packed matrix in memory, which is aligned to 4 bytes.
struct Nf4Matrix {
  const uint8_t* bytes = nullptr;
  Nf4Layout layout;
};

// The scales of blocks [first, first + count), as float32: with double
// quantisation value * group scale, rounded, + offset, rounded.
void Nf4Scales(const Nf4Matrix& matrix, int64_t first, int64_t count,
               float* scales);
// The latter, of a matrix's quantised and group scales, which are float32 at
// any address.
void Nf4DoubleScales(const uint8_t* quantised, const void* group_scales,
                     float offset, int64_t first, int64_t count, float* scales);

// Values [begin, begin + count).
void DequantizeNf4(const Nf4Matrix& matrix, int64_t begin, int64_t count,
                   float* out);

// Packs x[n], which begins a block, to ceil(n / 2) bytes and the scales of its
// ceil(n / 64) blocks (a NaN or an infinity makes its block's scale one). The
// values of a block of zeros are 0.
void QuantizeNf4(const float* x, int64_t n, uint8_t* packed, float* scales);

// What the scales of a whole matrix have in common: their mean, rounded once.
// (bitsandbytes' is the same up to the order in which it sums.)
float Nf4Offset(const float* scales, int64_t count);

// Quantises the scales of a matrix, or of whole groups of it.
void QuantizeNf4Scales(const float* scales, int64_t count, float offset,
                       uint8_t* quantised, float* group_scales);

// For nf4.cc and products: loops of nf4_loops.cc by instruction set.
struct Nf4Kernels {
  const char* name;
  void (*quantize)(const float* x, int64_t n, uint8_t* packed, float* scales);
  // Values [begin, begin + count) of `packed`; `scales` are those of the blocks
  // from begin / 64 on.
  void (*dequantize)(const uint8_t* packed, const float* scales, int64_t begin,
                     int64_t count, float* out);
  // y[r * stride] = x_r . w, for `rows` <= kNf4DotRows vectors of `columns`, a
  // multiple of 64, and a packed row w with its scales. In each x_r (columns
  // apart) the values with even indices come first in each 2 * lanes.
  void (*dot)(const uint8_t* w, const float* scales, int64_t columns,
              const float* x, int rows, float* y, int64_t stride);
  int lanes;  // 1: x as it is
};
constexpr int kNf4DotRows = 4;

SIMD_TABLES(Nf4Kernels, kNf4);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_QUANT_NF4_H_
