// SPDX-License-Identifier: Apache-2.0
//
// The formula of attention, for tests.
#ifndef CAPSTAN_KERNELS_ATTENTION_PLAIN_ATTENTION_FOR_TEST_H_
#define CAPSTAN_KERNELS_ATTENTION_PLAIN_ATTENTION_FOR_TEST_H_

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/testing.h"

namespace capstan::kernels {

using Lengths = std::vector<std::vector<int64_t>>;  // of documents, by row

// [rows, T] int64, as PackedRows takes them.
inline at::Tensor Positions(const Lengths& lengths) {
  std::vector<at::Tensor> documents;
  for (const std::vector<int64_t>& row : lengths) {
    for (int64_t length : row) documents.push_back(at::arange(length));
  }
  return at::cat(documents).to(at::kLong).view(
      {static_cast<int64_t>(lengths.size()), -1});
}

// Scores of all keys; those of other documents and, if causal, of later tokens
// are masked.
inline at::Tensor PlainAttention(const Tensors& in, const AttentionShape& shape,
                                 const at::Tensor& positions) {
  const int64_t hd = shape.head_dim, group = shape.heads / shape.kv_heads;
  const auto heads = [&](const at::Tensor& x, int64_t repeats) {
    return x.reshape({shape.batch, -1, x.size(-1) / hd, hd})
        .transpose(1, 2)
        .repeat_interleave(repeats, 1);
  };
  // Documents counted by their first tokens.
  const at::Tensor document = positions.eq(0).cumsum(1);
  const at::Tensor t = at::arange(positions.size(1));
  at::Tensor hidden = document.unsqueeze(1) != document.unsqueeze(2);
  if (shape.causal) {
    hidden = hidden | (t.unsqueeze(0) > t.unsqueeze(1)).unsqueeze(0);
  }
  if (shape.window > 0) {
    hidden = hidden | (t.unsqueeze(0) <= t.unsqueeze(1) - shape.window);
  }
  at::Tensor scores =
      at::matmul(heads(in[0], 1), heads(in[1], group).transpose(2, 3)) *
      (shape.scale != 0.0 ? shape.scale : 1.0 / std::sqrt(double(hd)));
  if (shape.softcap != 0.0) {
    scores = at::tanh(scores / shape.softcap) * shape.softcap;
  }
  scores = scores.masked_fill(hidden.unsqueeze(1),
                              -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), heads(in[2], group))
      .transpose(1, 2)
      .reshape(in[0].sizes());
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_PLAIN_ATTENTION_FOR_TEST_H_
