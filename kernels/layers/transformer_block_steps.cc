// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/transformer_block_steps.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/gemm/gemm.h"

namespace capstan {
namespace kernels {

void Project(const float* x, int64_t rows, int64_t width, const at::Tensor& w,
             float beta, float* out) {
  const ProfileScope profile("matrix products");
  const int64_t n = w.size(0);
  Gemm(Transpose::kRight, rows, n, width, 1.0f, {x, width},
       {w.const_data_ptr<float>(), width}, beta, {out, n});
}

void ProjectBack(const float* dy, int64_t rows, const at::Tensor& w, float beta,
                 float* dx) {
  const ProfileScope profile("matrix products");
  const int64_t n = w.size(0), width = w.size(1);
  Gemm(Transpose::kNone, rows, width, n, 1.0f, {dy, n},
       {w.const_data_ptr<float>(), width}, beta, {dx, width});
}

void Normalise(const TransformerBlockDims& d, const float* x,
               const at::Tensor& weight, double eps, float* y, float* rstd) {
  const ProfileScope profile("rms_norm");
  const float* w = weight.const_data_ptr<float>();
  ForRows(d.rows, d.hidden, [&](int64_t begin, int64_t end) {
    Simd().fp32.rms_norm(x + begin * d.hidden, w, static_cast<float>(eps),
                         end - begin, d.hidden, y + begin * d.hidden,
                         rstd + begin);
  });
}

void NormaliseAgain(const TransformerBlockDims& d, const float* x,
                    const at::Tensor& weight, const float* rstd, float* y) {
  const ProfileScope profile("rms_norm");
  const float* w = weight.const_data_ptr<float>();
  ForRows(d.rows, d.hidden, [&](int64_t begin, int64_t end) {
    Simd().fp32.rms_norm_again(x + begin * d.hidden, w, rstd + begin,
                               end - begin, d.hidden, y + begin * d.hidden);
  });
}

void NormaliseBackward(const TransformerBlockDims& d, const float* dy,
                       const float* x, const at::Tensor& weight,
                       const float* rstd, const float* residual, float* dx,
                       const at::Tensor& weight_gradient) {
  const ProfileScope profile("rms_norm");
  // A sum a piece of the rows, so that threads don't share one.
  const int64_t pieces = std::max<int64_t>(
      1, std::min<int64_t>(at::get_num_threads(), d.rows / RowGrain(d.hidden)));
  const bool wanted = weight_gradient.defined();
  at::Tensor sums;
  if (wanted) {
    sums = pieces == 1 ? weight_gradient
                       : at::empty({pieces * d.hidden}, weight.options());
    sums.zero_();
  }
  float* const sum = wanted ? sums.mutable_data_ptr<float>() : nullptr;
  const float* w = weight.const_data_ptr<float>();
  at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t begin = d.rows * piece / pieces;
      const int64_t end = d.rows * (piece + 1) / pieces;
      const int64_t at = begin * d.hidden;
      Simd().fp32.rms_norm_backward(
          dy + at, x + at, w, rstd + begin, residual + at, end - begin,
          d.hidden, dx + at, wanted ? sum + piece * d.hidden : nullptr);
    }
  });
  if (wanted && pieces > 1) {
    at::sum_out(const_cast<at::Tensor&>(weight_gradient),
                sums.view({pieces, d.hidden}), {0});
  }
}

void Rotate(const TransformerBlockDims& d, const at::Tensor& table, float sign,
            int64_t width, float* x) {
  const ProfileScope profile("rope");
  const int64_t positions = table.size(0), head_dim = d.shape.head_dim;
  const int64_t half = head_dim / 2;
  const float* angles = table.const_data_ptr<float>();
  ForRows(d.rows, width, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = angles + r % positions * head_dim;
      Simd().fp32.rotate(row, row + half, sign, width / head_dim, half,
                         x + r * width);
    }
  });
}

}  // namespace kernels
}  // namespace capstan
