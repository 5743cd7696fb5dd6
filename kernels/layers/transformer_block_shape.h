// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_SHAPE_H_
#define CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_SHAPE_H_

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/layers/adapter.h"
#include "kernels/memory.h"

namespace capstan::kernels {

// The matrices of a block, in the order of TransformerBlockOptions::parameters.
enum BlockMatrix {
  kQueryMatrix,
  kKeyMatrix,
  kValueMatrix,
  kOutputMatrix,
  kGateMatrix,
  kUpMatrix,
  kDownMatrix,
  kBlockMatrices
};

// The properties of a transformer block that determine its memory on the CPU.
struct TransformerBlockShape {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  AttentionShape attention;
  c10::ScalarType dtype = c10::ScalarType::Float;
  // Whether rows pack several documents, which ATen computes one by one.
  bool packed = false;
  // Whether the block's own weights have gradients.
  bool trained = true;
  std::array<AdapterShape, kBlockMatrices> adapters;

  // Bytes of [rows, width] for widths hidden, intermediate, all query heads and
  // all key heads; and of one float32 per row.
  int64_t x() const { return Rows(hidden); }
  int64_t inner() const { return Rows(intermediate); }
  int64_t q() const { return Rows(query_width()); }
  int64_t kv() const { return Rows(key_width()); }
  int64_t rstd() const { return rows * kFloatBytes; }
  // The gradient of a norm's weight.
  int64_t norm_gradient() const {
    return trained ? hidden * ElementBytes(dtype) : 0;
  }
  int64_t query_width() const { return attention.heads * attention.head_dim; }
  int64_t key_width() const { return attention.kv_heads * attention.head_dim; }
  LinearMemory Linear(BlockMatrix matrix) const;

 private:
  int64_t Rows(int64_t width) const {
    return rows * width * ElementBytes(dtype);
  }
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_SHAPE_H_
