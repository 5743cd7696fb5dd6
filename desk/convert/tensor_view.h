// SPDX-License-Identifier: Apache-2.0
//
// Tensors of others' files, where they are in mapped memory.
#ifndef CAPSTAN_DESK_CONVERT_TENSOR_VIEW_H_
#define CAPSTAN_DESK_CONVERT_TENSOR_VIEW_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace capstan {

// A box of elements in memory, and its place in a whole tensor. Sizes, strides
// and offsets count elements.
struct TensorPiece {
  const char* data = nullptr;  // of the first element; may be unaligned
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t to = 0;  // the first element's place in the row-major whole
  std::vector<int64_t> to_strides;
};

// A tensor as it is stored: in one piece, a strided view of a storage, or in
// several, which cover it.
struct TensorView {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  std::vector<TensorPiece> pieces;

  int64_t numel() const;
  int64_t bytes() const;
  // Its bytes in row-major order if memory has them so, else null.
  const char* contiguous() const;
  // Copies all elements in row-major order to bytes() bytes.
  void CopyTo(char* out) const;
  // Tells the kernel that its pages won't be read again soon.
  void Forget() const;
  // The value of a tensor of one number; unset if it isn't one.
  absl::optional<int64_t> Scalar() const;
  // Whether both are the same elements of the same memory.
  bool SameAs(const TensorView& other) const;
};

// "[2, 3]".
std::string ShapeText(const std::vector<int64_t>& shape);

// The number of elements; unset if it or their bytes (at most 16 each) overflow
// or a size is negative.
absl::optional<int64_t> NumelOf(const std::vector<int64_t>& shape);
// Of a row-major tensor whose NumelOf is set.
std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& shape);

}  // namespace capstan

#endif  // CAPSTAN_DESK_CONVERT_TENSOR_VIEW_H_
