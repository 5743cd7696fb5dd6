// SPDX-License-Identifier: Apache-2.0
//
// The matrix of a linear layer, y = x W^T, as operators take it: dense, or
// frozen and packed.
#ifndef CAPSTAN_KERNELS_LAYERS_WEIGHT_H_
#define CAPSTAN_KERNELS_LAYERS_WEIGHT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "kernels/context/fp8.h"

namespace capstan::kernels {

// What the bytes of a matrix mean; kernels/quant has the packed formats.
enum class WeightFormat { kDense, kNf4, kNf4Double, kFp8 };

// W [out, in]: a tensor of a floating dtype, or, without a gradient, of int8
// with a scale a row, or a 1-D uint8 tensor.
struct Weight {
  Weight() = default;
  // Implicit: a dense matrix.
  Weight(at::Tensor dense)  // NOLINT(google-explicit-constructor)
      : tensor(std::move(dense)) {}
  Weight(at::Tensor bytes, WeightFormat format, int64_t out, int64_t in)
      : tensor(std::move(bytes)),
        format(format),
        out(out),
        in(in),
        stored_rows(out) {}

  // Of int8, with scales [out] float32 on the CPU.
  static Weight Scaled(at::Tensor values, at::Tensor scales) {
    Weight weight(std::move(values));
    weight.scales = std::move(scales);
    return weight;
  }

  bool defined() const { return tensor.defined(); }
  bool packed() const { return format != WeightFormat::kDense; }
  int64_t rows() const { return packed() ? out : tensor.size(0); }
  int64_t columns() const { return packed() ? in : tensor.size(1); }

  // Rows [begin, begin + count), in the same memory.
  Weight Rows(int64_t begin, int64_t count) const {
    if (!packed()) {
      Weight part = Scaled(
          tensor.narrow(0, begin, count),
          scales.defined() ? scales.narrow(0, begin, count) : at::Tensor());
      part.fp8 = fp8;
      return part;
    }
    Weight part(tensor, format, count, in);
    part.first_row = first_row + begin;
    part.stored_rows = stored_rows;
    part.fp8 = fp8;
    return part;
  }

  at::Tensor tensor;
  at::Tensor scales;  // of int8 alone
  WeightFormat format = WeightFormat::kDense;
  // Of packed ones: the shape, and which rows of those that are stored.
  int64_t out = 0, in = 0;
  int64_t first_row = 0, stored_rows = 0;
  // How it is multiplied (fp8_linear.h).
  Fp8Scaling fp8 = Fp8Scaling::kOff;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_WEIGHT_H_
