// SPDX-License-Identifier: Apache-2.0
#include "desk/convert/tensor_view.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"

namespace capstan {
namespace {

// A box without dimensions of one element, of which those that follow each
// other in memory are one.
struct Walk {
  std::vector<int64_t> sizes, from, to;  // strides in elements
};

Walk WalkOf(const TensorPiece& piece) {
  Walk walk;
  for (size_t d = 0; d < piece.sizes.size(); ++d) {
    if (piece.sizes[d] == 1) continue;
    const bool joins = !walk.sizes.empty() &&
                       walk.from.back() == piece.sizes[d] * piece.strides[d] &&
                       walk.to.back() == piece.sizes[d] * piece.to_strides[d];
    if (joins) {
      walk.sizes.back() *= piece.sizes[d];
      walk.from.back() = piece.strides[d];
      walk.to.back() = piece.to_strides[d];
    } else {
      walk.sizes.push_back(piece.sizes[d]);
      walk.from.push_back(piece.strides[d]);
      walk.to.push_back(piece.to_strides[d]);
    }
  }
  return walk;
}

void CopyWalk(const Walk& walk, size_t d, int64_t size, const char* from,
              char* to) {
  if (d == walk.sizes.size()) {
    std::memcpy(to, from, size);
    return;
  }
  const bool row =
      d + 1 == walk.sizes.size() && walk.from[d] == 1 && walk.to[d] == 1;
  if (row) {
    std::memcpy(to, from, walk.sizes[d] * size);
    return;
  }
  for (int64_t i = 0; i < walk.sizes[d]; ++i) {
    CopyWalk(walk, d + 1, size, from + i * walk.from[d] * size,
             to + i * walk.to[d] * size);
  }
}

}  // namespace

int64_t TensorView::numel() const { return NumelOf(shape).value_or(0); }

int64_t TensorView::bytes() const {
  return numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

const char* TensorView::contiguous() const {
  if (pieces.size() != 1 || pieces[0].sizes != shape) return nullptr;
  const Walk walk = WalkOf(pieces[0]);
  const bool one =
      walk.sizes.empty() || (walk.sizes.size() == 1 && walk.from[0] == 1);
  return one ? pieces[0].data : nullptr;
}

void TensorView::CopyTo(char* out) const {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  for (const TensorPiece& piece : pieces) {
    if (std::count(piece.sizes.begin(), piece.sizes.end(), 0) > 0) continue;
    CopyWalk(WalkOf(piece), 0, size, piece.data, out + piece.to * size);
  }
}

void TensorView::Forget() const {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  for (const TensorPiece& piece : pieces) {
    int64_t extent = 1;
    for (size_t d = 0; d < piece.sizes.size(); ++d) {
      extent += (piece.sizes[d] - 1) * piece.strides[d];
    }
    if (extent > 0) ForgetMapped(piece.data, extent * size);
  }
}

absl::optional<int64_t> TensorView::Scalar() const {
  if (numel() != 1 || pieces.empty()) return absl::nullopt;
  const char* const data = pieces[0].data;
  if (dtype == c10::ScalarType::Long) {
    int64_t value;
    std::memcpy(&value, data, sizeof(value));
    return value;
  }
  if (dtype != c10::ScalarType::Float) return absl::nullopt;
  float value;
  std::memcpy(&value, data, sizeof(value));
  // Floats beyond that aren't counts.
  if (!(std::fabs(value) < 1e15f)) return absl::nullopt;
  return static_cast<int64_t>(value);
}

bool TensorView::SameAs(const TensorView& other) const {
  return dtype == other.dtype && shape == other.shape && pieces.size() == 1 &&
         other.pieces.size() == 1 && numel() > 0 &&
         pieces[0].data == other.pieces[0].data &&
         pieces[0].strides == other.pieces[0].strides;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::optional<int64_t> NumelOf(const std::vector<int64_t>& shape) {
  int64_t numel = 1, bytes = 16;
  for (const int64_t size : shape) {
    // Strides of an empty tensor count, too.
    if (size < 0 ||
        __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      return absl::nullopt;
    }
    numel *= size;
  }
  return numel;
}

std::vector<int64_t> RowMajorStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) {
    strides[d - 1] = strides[d] * std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

}  // namespace capstan
