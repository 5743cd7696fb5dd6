// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/squared_sum.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <algorithm>
#include <vector>

#include "kernels/cuda/dispatch.h"

namespace capstan {
namespace {

// Pieces have a fixed size, so that the sum doesn't depend on the number of
// threads.
constexpr int64_t kPiece = 1 << 16;

double SumPiece(const float* x, int64_t n) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double v = x[i + l];
      lanes[l] += v * v;
    }
  }
  double sum = 0.0;
  for (; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  for (double lane : lanes) sum += lane;
  return sum;
}

}  // namespace

at::Tensor SquaredSum(const at::Tensor& flat, int64_t begin, int64_t end) {
  const at::Tensor part = flat.narrow(0, begin, end - begin);
  if (const auto* cuda = kernels::cuda::For(part)) {
    return kernels::cuda::SquaredSum(*cuda, part);
  }
  if (!flat.is_cpu() || flat.scalar_type() != at::kFloat) {
    return at::linalg_vector_norm(part, 2, at::OptionalIntArrayRef(), false,
                                  at::kDouble)
        .square();
  }
  const float* data = flat.const_data_ptr<float>();
  const int64_t pieces = (end - begin + kPiece - 1) / kPiece;
  std::vector<double> sums(pieces);
  at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const int64_t from = begin + p * kPiece;
      sums[p] = SumPiece(data + from, std::min(kPiece, end - from));
    }
  });
  double sum = 0.0;
  for (double s : sums) sum += s;
  return at::full({}, sum, at::kDouble);
}

}  // namespace capstan
