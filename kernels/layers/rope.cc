// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <cmath>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"
#include "kernels/layers/block_parts.h"

namespace capstan::kernels {
namespace {

void ComposedRope(const at::Tensor& table, RopeDirection direction,
                  int64_t head_dim, at::Tensor& x) {
  const int64_t positions = table.size(0), half = table.size(1) / 2;
  at::Tensor heads = x.view({x.size(0) / positions, positions, -1, head_dim});
  const at::Tensor c = table.narrow(1, 0, half).unsqueeze(1);
  at::Tensor s = table.narrow(1, half, half).unsqueeze(1);
  if (direction == RopeDirection::kBackward) s = -s;
  const at::Tensor a = heads.narrow(3, 0, half).to(at::kFloat);
  const at::Tensor b = heads.narrow(3, half, half).to(at::kFloat);
  heads.narrow(3, 0, 2 * half)
      .copy_(at::cat({a * c - b * s, b * c + a * s}, 3));
}

}  // namespace

at::Tensor RopeTable(int64_t positions,
                     c10::ArrayRef<double> inverse_frequencies, double factor) {
  const auto half = static_cast<int64_t>(inverse_frequencies.size());
  at::Tensor table = at::empty({positions, 2 * half}, at::kFloat);
  float* row = table.mutable_data_ptr<float>();
  const auto scale = static_cast<float>(factor);
  for (int64_t p = 0; p < positions; ++p, row += 2 * half) {
    for (int64_t i = 0; i < half; ++i) {
      // Frequency and angle are rounded to float32 to match transformers'
      // modeling_rope_utils.py.
      const float angle =
          static_cast<float>(p) * static_cast<float>(inverse_frequencies[i]);
      row[i] = std::cos(angle) * scale;
      row[half + i] = std::sin(angle) * scale;
    }
  }
  return table;
}

void ApplyRope(const at::Tensor& table, RopeDirection direction,
               int64_t head_dim, at::Tensor& x) {
  if (!table.defined()) return;
  const ProfileScope profile("rope");
  const float sign = direction == RopeDirection::kForward ? 1.0f : -1.0f;
  const int64_t positions = table.size(0), rotated = table.size(1);
  const bool partial = rotated < head_dim;
  if (const auto* cuda = cuda::For(x); cuda != nullptr && !partial) {
    return cuda::Rope(*cuda, table, sign, x, x);
  }
  if (!HasRowKernels(x)) return ComposedRope(table, direction, head_dim, x);
  const int64_t half = rotated / 2, width = x.size(1);
  const float* angles = table.const_data_ptr<float>();
  WithStorage(x.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    T* xp = WriteAs<T>(x);
    at::parallel_for(
        0, x.size(0), RowGrain(width), [&](int64_t r, int64_t end) {
          for (; r < end; ++r) {
            const float* row = angles + r % positions * rotated;
            // Of a partial rope, head by head.
            const int64_t step = partial ? head_dim : width;
            for (int64_t i = 0; i < width; i += step) {
              Simd().rows<T>().rotate(row, row + half, sign,
                                      partial ? 1 : width / head_dim, half,
                                      xp + r * width + i);
            }
          }
        });
  });
}

void ApplyRopeInto(const at::Tensor& table, RopeDirection direction,
                   int64_t head_dim, const at::Tensor& x, at::Tensor& y) {
  if (table.defined() && table.size(1) == head_dim) {
    if (const auto* cuda = cuda::For(x)) {
      const ProfileScope profile("rope");
      const double sign = direction == RopeDirection::kForward ? 1.0 : -1.0;
      return cuda::Rope(*cuda, table, sign, x, y);
    }
  }
  y.copy_(x);
  ApplyRope(table, direction, head_dim, y);
}

}  // namespace capstan::kernels
