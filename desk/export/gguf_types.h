// SPDX-License-Identifier: Apache-2.0
//
// The types of a GGUF file's tensors: how rows become blocks of few bits a
// value, and back.
#ifndef CAPSTAN_DESK_EXPORT_GGUF_TYPES_H_
#define CAPSTAN_DESK_EXPORT_GGUF_TYPES_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace capstan {

// By ggml's numbers, which are in the files.
enum class GgufType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// "Q4_K"; "" for a number that isn't one of the above.
absl::string_view GgufTypeName(GgufType type);
// Values of a block. Rows are whole blocks.
int64_t GgufBlock(GgufType type);
// Of `values` values, a multiple of GgufBlock.
int64_t GgufBytes(GgufType type, int64_t values);

// Writes `count` values, a multiple of GgufBlock, as blocks to GgufBytes bytes.
// A quantised value is step * code - offset. Codes are nearest; the step of a
// group of 16 or 32 values is the one of a few that leaves the least squared
// error. Not finite or too large a value makes an inexact block, which
// GgufError shows. Thread-safe.
void ToGguf(GgufType type, const float* values, int64_t count, char* out);
// The inverse. `bytes` may be unaligned.
void FromGguf(GgufType type, const char* bytes, int64_t count, float* out);

// How far a block's values may be from what it was made of, as a share of what
// the type allows: the root of their mean squared error for quantised types,
// half a unit in the last place of F16 and BF16 (as rounding to nearest has
// it), nothing for F32. At most 1 if the block is right.
double GgufError(GgufType type, const float* wanted, const float* got);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPORT_GGUF_TYPES_H_
