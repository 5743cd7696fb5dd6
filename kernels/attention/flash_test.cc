// SPDX-License-Identifier: Apache-2.0
//
// What is asked of ATen's flash kernels, which no CPU has: a formula in their
// place, registered for the CPU under their names, takes cumulative lengths,
// grouped heads and windows as they do.
#include "kernels/attention/flash.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using OptionalInt = std::optional<int64_t>;

struct FlashArguments {
  bool causal = false;
  double scale = 1.0;
  OptionalInt left, right;
};

// One sequence: q [T, heads, head_dim], k and v [L, kv_heads, head_dim].
at::Tensor OneSequence(const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v, const FlashArguments& a) {
  const int64_t group = q.size(1) / k.size(1);
  const auto heads = [](const at::Tensor& t, int64_t repeats) {
    return t.transpose(0, 1).repeat_interleave(repeats, 0);
  };
  at::Tensor scores =
      at::matmul(heads(q, 1), heads(k, group).transpose(1, 2)) * a.scale;
  const at::Tensor key = at::arange(k.size(0)).unsqueeze(0);
  const at::Tensor own =
      at::arange(q.size(0)).unsqueeze(1) + (k.size(0) - q.size(0));
  at::Tensor hidden = at::zeros_like(key > own);
  if (a.causal || a.right == 0) hidden = hidden | (key > own);
  if (a.left.value_or(-1) >= 0) hidden = hidden | (key < own - *a.left);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), heads(v, group)).transpose(0, 1);
}

at::Tensor Formula(const at::Tensor& q, const at::Tensor& k,
                   const at::Tensor& v, const OptionalTensor& ends,
                   const FlashArguments& a) {
  std::vector<at::Tensor> outs;
  if (!ends.has_value() || !ends->defined()) {
    for (int64_t b = 0; b < q.size(0); ++b) {
      outs.push_back(OneSequence(q[b], k[b], v[b], a).unsqueeze(0));
    }
    return at::cat(outs);
  }
  EXPECT_EQ(ends->scalar_type(), at::kInt);
  const int32_t* const end = ends->const_data_ptr<int32_t>();
  EXPECT_EQ(end[ends->numel() - 1], q.size(0));
  for (int64_t i = 0; i + 1 < ends->numel(); ++i) {
    const auto part = [&](const at::Tensor& t) {
      return t.narrow(0, end[i], end[i + 1] - end[i]);
    };
    outs.push_back(OneSequence(part(q), part(k), part(v), a));
  }
  return at::cat(outs);
}

// Of the last call.
struct Seen {
  int64_t kv_heads = 0;
  int64_t longest = 0;
};
Seen& LastSeen() {
  static Seen seen;
  return seen;
}

FlashArguments ArgumentsOf(const at::Tensor& q, bool causal,
                           std::optional<double> scale, OptionalInt left,
                           OptionalInt right) {
  return {causal, scale.value_or(1.0 / std::sqrt(double(q.size(-1)))), left,
          right};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> Forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const OptionalTensor& ends_q, const OptionalTensor& ends_k, int64_t max_q,
    int64_t max_k, double, bool causal, bool, std::optional<double> scale,
    OptionalInt left, OptionalInt right, const OptionalTensor&,
    const OptionalTensor&) {
  LastSeen() = {k.size(-2), max_k};
  EXPECT_EQ(ends_q.has_value(), ends_k.has_value());
  const at::Tensor none = at::empty({0}, q.options());
  return {Formula(q, k, v, ends_q, ArgumentsOf(q, causal, scale, left, right)),
          none, none, none, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> Backward(
    const at::Tensor& d_out, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const at::Tensor&, const at::Tensor&,
    const at::Tensor& ends_q, const at::Tensor&, int64_t, int64_t, double,
    bool causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale, OptionalInt left, OptionalInt right) {
  const at::AutoGradMode gradients(true);
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& t : {q, k, v}) {
    leaves.push_back(t.detach().requires_grad_(true));
  }
  // The dispatcher has switched autograd off.
  const c10::impl::LocalDispatchKeySet keys =
      c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard on(
      keys.included_, keys.excluded_ - c10::autograd_dispatch_keyset);
  const at::Tensor out = Formula(leaves[0], leaves[1], leaves[2], ends_q,
                                 ArgumentsOf(q, causal, scale, left, right));
  const auto found = torch::autograd::grad({out}, leaves, {d_out});
  return {found[0], found[1], found[2]};
}

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("_flash_attention_forward", TORCH_FN(Forward));
  library.impl("_flash_attention_backward", TORCH_FN(Backward));
}

struct Problem {
  std::vector<std::vector<int64_t>> lengths;  // of documents, by row
  AttentionShape shape;

  Packing packing() const {
    std::vector<at::Tensor> all;
    for (const std::vector<int64_t>& row : lengths) {
      for (const int64_t length : row) all.push_back(at::arange(length));
    }
    return c10::make_intrusive<PackedRows>(
        at::cat(all).to(at::kLong).view({shape.batch, -1}));
  }
  Tensors Inputs() const {
    int64_t rows = 0;
    for (const std::vector<int64_t>& row : lengths) {
      for (const int64_t length : row) rows += length;
    }
    const int64_t kv = shape.kv_heads * shape.head_dim;
    return {Wave({rows, shape.heads * shape.head_dim}, 2.0),
            Wave({rows, kv}, 2.0), Wave({rows, kv})};
  }
};

std::vector<Problem> Problems() {
  const std::vector<std::vector<int64_t>> lengths = {
      {65, 1, 64, 7}, {3, 130, 1, 3}, {137}};
  std::vector<Problem> all = {{lengths, {3, 4, 2, 8}},
                              {lengths, {3, 4, 2, 8, /*causal=*/false}},
                              {{{1, 4, 3, 1}, {9}}, {2, 3, 1, 16}},
                              {lengths, {3, 4, 4, 8, true, 0.25}}};
  for (const int64_t window : {1, 5, 63, 70}) {
    AttentionShape shape = {3, 4, 1, 8};
    shape.window = window;
    all.push_back({lengths, shape});
  }
  return all;
}

TEST(FlashAttentionTest, DocumentsAsAttentionComputesThem) {
  for (const Problem& p : Problems()) {
    const Packing packing = p.packing();
    const Tensors inputs = p.Inputs();
    ASSERT_TRUE(IsFlashShape(p.shape, packing.get()));
    const Tensors got = RunBoth(
        [&](const Tensors& in) {
          return FlashAttention(in[0], in[1], in[2], p.shape, packing.get());
        },
        inputs, at::kFloat);
    EXPECT_EQ(LastSeen().kv_heads, p.shape.kv_heads) << "keys aren't repeated";
    EXPECT_EQ(LastSeen().longest, packing->longest());
    const Tensors wanted = RunBoth(
        [&](const Tensors& in) {
          return Attention(in[0], in[1], in[2], p.shape, packing);
        },
        inputs, at::kFloat);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LT(Difference(got[i], wanted[i].to(at::kDouble)), 1e-5)
          << "result " << i << ", window " << p.shape.window;
    }
  }
}

TEST(FlashAttentionTest, WholeRows) {
  for (const Problem& p : Problems()) {
    const Tensors inputs = p.Inputs();
    const Tensors got = RunBoth(
        [&](const Tensors& in) {
          return FlashAttention(in[0], in[1], in[2], p.shape, nullptr);
        },
        inputs, at::kFloat);
    const Tensors wanted = RunBoth(
        [&](const Tensors& in) {
          return Attention(in[0], in[1], in[2], p.shape);
        },
        inputs, at::kFloat);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LT(Difference(got[i], wanted[i].to(at::kDouble)), 1e-5) << i;
    }
  }
}

// The last of more keys, which lie in a larger cache.
TEST(FlashAttentionTest, CachedKeys) {
  for (const int64_t window : {0, 4}) {
    for (const int64_t queries : {1, 5}) {
      AttentionShape shape = {2, 4, 2, 8};
      shape.window = window;
      const at::Tensor q = Wave({2 * queries, 32}, 2.0).to(at::kFloat);
      const at::Tensor cache = Wave({2, 20, 16}, 2.0).to(at::kFloat);
      const at::Tensor k = cache.narrow(1, 0, 11), v = cache.narrow(1, 5, 11);
      const at::Tensor got = FlashAttention(q, k, v, shape, nullptr);
      const at::Tensor wanted = CachedAttention(q, k, v, shape);
      EXPECT_LT(Difference(got, wanted.to(at::kDouble)), 1e-5);
    }
  }
}

TEST(FlashAttentionTest, WhatItCannotDo) {
  const Packing packing = Problem{{{3, 2}}, {1, 2, 2, 8}}.packing();
  AttentionShape shape = {1, 2, 2, 8};
  EXPECT_TRUE(IsFlashShape(shape, nullptr));
  EXPECT_TRUE(IsFlashShape(shape, packing.get()));
  shape.softcap = 30.0;
  EXPECT_FALSE(IsFlashShape(shape, nullptr));
  EXPECT_FALSE(IsFlashShape({1, 2, 2, 12}, nullptr));
  EXPECT_FALSE(IsFlashShape({1, 2, 2, 264}, nullptr));
  // Only on a GPU.
  EXPECT_FALSE(CanUseFlash(at::empty({5, 16}, at::kBFloat16), {1, 2, 2, 8},
                           packing.get()));
}

TEST(PackedRowsTest, OffsetsCountThroughTheRows) {
  const Packing packing = Problem{{{2, 1, 3}, {6}}, {2, 1, 1, 8}}.packing();
  EXPECT_TRUE(
      at::equal(packing->offsets(), at::tensor({0, 2, 3, 6, 12}, at::kInt)));
}

// The documents are those on the host; the mask is made on the device.
TEST(PackedRowsTest, PositionsOnBothSides) {
  const at::Tensor host = at::tensor({0, 1, 0}, at::kLong).view({1, 3});
  const PackedRows rows(host, host.clone());
  EXPECT_TRUE(rows.knows_documents());
  EXPECT_EQ(rows.documents().size(), 2u);
  EXPECT_EQ(rows.longest(), 2);
  EXPECT_ANY_THROW(PackedRows(host.view({3, 1}), host));
}

}  // namespace
}  // namespace capstan::kernels
