// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>

#include <cmath>
#include <limits>

#include "kernels/encoder/encoder_block.h"

namespace capstan {
namespace kernels {
namespace {

// [B * T, heads * head_dim] as [B, heads, T, head_dim].
at::Tensor Heads(const at::Tensor& x, int64_t batch, int64_t heads) {
  return x.reshape({batch, x.size(0) / batch, heads, x.size(1) / heads})
      .transpose(1, 2);
}

// What comes out of the attention, [queries, E]. x_query: the rows whose
// queries are wanted.
at::Tensor Attention(const at::Tensor& x, const at::Tensor& x_query,
                     const EncoderBlockWeights& w,
                     const EncoderBlockOptions& options) {
  const int64_t width = x.size(1), batch = options.rows->batch();
  const int64_t length = x.size(0) / batch;
  const auto project = [&](const at::Tensor& from, int part) {
    return Heads(at::linear(from, w[kInWeight].narrow(0, part * width, width),
                            w[kInBias].narrow(0, part * width, width)),
                 batch, options.heads);
  };
  const at::Tensor q = project(x_query, 0), k = project(x, 1);
  const at::Tensor v = project(x, 2);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)).mul(scale);
  const at::Tensor places = at::arange(length, options.rows->last.options());
  const at::Tensor seen_by =
      options.last_only
          ? options.rows->last.remainder(length).view({batch, 1, 1, 1})
          : places.view({1, 1, length, 1});
  const at::Tensor weights =
      scores
          .masked_fill(places.gt(seen_by),
                       -std::numeric_limits<double>::infinity())
          .softmax(-1);
  const at::Tensor mixed = at::matmul(
      DropScores(weights, options.dropout, options.layer, options.max_length),
      v);
  return mixed.transpose(1, 2).reshape({x_query.size(0), width});
}

}  // namespace

at::Tensor PlainEncoderBlock(const at::Tensor& x, const EncoderBlockWeights& w,
                             const EncoderBlockOptions& options) {
  const EncoderRows& rows = *options.rows;
  for (int64_t b = 0; b < rows.batch(); ++b) {
    TORCH_CHECK(rows.length(b) == rows.length(0),
                "a plain encoder block wants sequences alike in length");
  }
  const auto drop = [&](const at::Tensor& t, DropoutPlace place) {
    return DropRows(t, options.dropout, options.layer, place);
  };
  const at::Tensor x_query =
      options.last_only ? x.index_select(0, rows.last) : x;
  const at::Tensor attended =
      at::linear(Attention(x, x_query, w, options), w[kOutWeight], w[kOutBias]);
  const at::Tensor y =
      at::layer_norm(x_query + drop(attended, DropoutPlace::kOutput),
                     {x.size(1)}, w[kNorm1Weight], w[kNorm1Bias], options.eps);
  const at::Tensor inner = drop(
      at::gelu(at::linear(y, w[kUpWeight], w[kUpBias])), DropoutPlace::kInner);
  const at::Tensor fed = at::linear(inner, w[kDownWeight], w[kDownBias]);
  return at::layer_norm(y + drop(fed, DropoutPlace::kFeedForward), {x.size(1)},
                        w[kNorm2Weight], w[kNorm2Bias], options.eps);
}

}  // namespace kernels
}  // namespace capstan
