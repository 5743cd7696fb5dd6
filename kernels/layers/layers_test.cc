// SPDX-License-Identifier: Apache-2.0
//
// Compares the operators of a layer with plain formulas, at odd sizes.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

TransformerBlockOptions Options() {
  TransformerBlockOptions options;
  options.eps = kEps;
  return options;
}

at::Tensor PlainRope(const at::Tensor& x, const at::Tensor& table) {
  const int64_t hd = table.size(1), half = hd / 2, positions = table.size(0);
  const at::Tensor t = table.to(x.dtype()).unsqueeze(1);
  const at::Tensor heads = x.view({-1, positions, x.size(1) / hd, hd});
  const at::Tensor a = heads.narrow(3, 0, half),
                   b = heads.narrow(3, half, half);
  const at::Tensor c = t.narrow(2, 0, half), s = t.narrow(2, half, half);
  return at::cat({a * c - b * s, b * c + a * s}, 3).view(x.sizes());
}

// q: [batch * T, heads * hd]; k, v: [batch * L, kv_heads * hd].
at::Tensor PlainAttention(const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const AttentionShape& shape) {
  const int64_t hd = shape.head_dim, group = shape.heads / shape.kv_heads;
  const auto heads = [&](const at::Tensor& x, int64_t repeats) {
    return x.reshape({shape.batch, -1, x.size(-1) / hd, hd})
        .transpose(1, 2)
        .repeat_interleave(repeats, 1);
  };
  const at::Tensor qh = heads(q, 1), kh = heads(k, group), vh = heads(v, group);
  const int64_t queries = qh.size(2), keys = kh.size(2);
  const at::Tensor all = at::ones({queries, keys}, at::kBool);
  const at::Tensor seen = shape.causal ? all.tril(keys - queries) : all;
  const at::Tensor scores =
      (at::matmul(qh, kh.transpose(2, 3)) / std::sqrt(double(hd)))
          .masked_fill(seen.logical_not(),
                       -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), vh)
      .transpose(1, 2)
      .reshape(q.sizes());
}

TEST(LayersTest, RmsNorm) {
  for (const auto& [rows, n] : {std::pair(1, 1), {3, 7}, {5, 64}, {130, 77}}) {
    ExpectSame([](const Tensors& in) { return RmsNorm(in[0], in[1], kEps); },
               [](const Tensors& in) { return PlainNorm(in[0], in[1]); },
               {Wave({rows, n}, 2.0), Wave({n})});
  }
}

TEST(LayersTest, RmsNormHasTheSameBitsOnAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  const Tensors inputs = {Wave({4000, 33}), Wave({33})};
  const Operator op = [](const Tensors& in) {
    return RmsNorm(in[0], in[1], kEps);
  };
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::set_num_threads(1);
    const Tensors one = RunBoth(op, inputs, type);
    at::set_num_threads(3);
    const Tensors three = RunBoth(op, inputs, type);
    at::set_num_threads(before);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(at::equal(one[i], three[i])) << "result " << i;
    }
  }
}

TEST(LayersTest, NoRows) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensors norm =
        RunBoth([](const Tensors& in) { return RmsNorm(in[0], in[1], kEps); },
                {Wave({0, 5}), Wave({5})}, type);
    EXPECT_EQ(norm[1].numel(), 0);
    EXPECT_EQ(norm[2].abs().max().item<float>(), 0.0f);
    const Tensors mlp = RunBoth(
        [](const Tensors& in) {
          return GatedMlp(in[0], {in[1], in[2], in[3], in[4]}, Options());
        },
        {Wave({0, 5}), Wave({5}), Wave({7, 5}), Wave({7, 5}), Wave({5, 7})},
        type);
    EXPECT_EQ(mlp[0].numel(), 0);
    for (size_t i = 2; i < mlp.size(); ++i) {
      EXPECT_EQ(mlp[i].abs().max().item<float>(), 0.0f);
    }
  }
}

TEST(LayersTest, AttentionOutput) {
  ExpectSame(
      [](const Tensors& in) {
        TransformerBlockWeights weights;
        weights.output = in[1];
        return AttentionOutput(in[0], in[2], weights, Options());
      },
      [](const Tensors& in) { return in[2] + at::linear(in[0], in[1]); },
      {Wave({9, 7}), Wave({5, 7}), Wave({9, 5})});
}

TEST(LayersTest, RopeTableHoldsAnglesByPosition) {
  const at::Tensor table = RopeTable(50, 6, 100.0);
  for (int64_t p : {0, 1, 49}) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle = p * std::pow(100.0, -2.0 * i / 6.0);
      EXPECT_NEAR(table[p][i].item<double>(), std::cos(angle), 1e-5);
      EXPECT_NEAR(table[p][3 + i].item<double>(), std::sin(angle), 1e-5);
    }
  }
}

TEST(LayersTest, AttentionInput) {
  // Two sequences of 5, three query heads and one of keys, heads of 6.
  const at::Tensor table = RopeTable(9, 6, 100.0).narrow(0, 4, 5);
  ExpectSame(
      [&](const Tensors& in) {
        TransformerBlockOptions options = Options();
        options.shape = {2, 3, 1, 6};
        options.rope_table = table;
        const QueryKeyValue out =
            AttentionInput(in[0], {in[1], in[2], in[3], in[4]}, options);
        return at::cat({out.q, out.k, out.v}, 1);
      },
      [&](const Tensors& in) {
        const at::Tensor n = PlainNorm(in[0], in[1]);
        return at::cat(
            {PlainRope(at::linear(n, in[2]), table),
             PlainRope(at::linear(n, in[3]), table), at::linear(n, in[4])},
            1);
      },
      {Wave({10, 11}), Wave({11}), Wave({18, 11}, 0.5), Wave({6, 11}, 0.5),
       Wave({6, 11}, 0.5)});
}

TEST(LayersTest, GatedMlp) {
  ExpectSame(
      [](const Tensors& in) {
        return GatedMlp(in[0], {in[1], in[2], in[3], in[4]}, Options());
      },
      [](const Tensors& in) {
        const at::Tensor n = PlainNorm(in[0], in[1]);
        return in[0] +
               at::linear(at::silu(at::linear(n, in[2])) * at::linear(n, in[3]),
                          in[4]);
      },
      {Wave({6, 9}), Wave({9}), Wave({13, 9}, 0.5), Wave({13, 9}, 0.5),
       Wave({9, 13}, 0.5)});
}

void ExpectAttention(bool causal) {
  // Shorter than a vector, than a block of queries, around and beyond one.
  for (int64_t length : {1, 5, 16, 63, 64, 65, 150}) {
    for (int64_t kv_heads : {1, 2, 6}) {
      SCOPED_TRACE(testing::Message() << length << " x " << kv_heads);
      const AttentionShape shape{2, 6, kv_heads, 4, causal};
      ExpectSame(
          [&](const Tensors& in) {
            return Attention(in[0], in[1], in[2], shape);
          },
          [&](const Tensors& in) {
            return PlainAttention(in[0], in[1], in[2], shape);
          },
          {Wave({2 * length, 24}), Wave({2 * length, 4 * kv_heads}),
           Wave({2 * length, 4 * kv_heads})});
    }
  }
}

TEST(LayersTest, CausalAttention) { ExpectAttention(/*causal=*/true); }

TEST(LayersTest, BidirectionalAttention) { ExpectAttention(/*causal=*/false); }

TEST(LayersTest, AttentionWithoutRows) {
  for (const bool causal : {true, false}) {
    const AttentionShape shape{2, 6, 2, 4, causal};
    const Tensors results = RunBoth(
        [&](const Tensors& in) {
          return Attention(in[0], in[1], in[2], shape);
        },
        {Wave({0, 24}), Wave({0, 8}), Wave({0, 8})}, at::kFloat);
    for (const at::Tensor& t : results) EXPECT_EQ(t.numel(), 0);
  }
}

TEST(LayersTest, CachedAttentionReadsPartOfALongerCache) {
  at::AutoGradMode no_gradients(false);
  const AttentionShape shape{2, 4, 2, 8};
  for (const auto& [queries, keys] :
       {std::pair(1, 1), {1, 20}, {7, 20}, {70, 90}, {20, 20}}) {
    const at::Tensor q = Wave({2 * queries, 32});
    const at::Tensor k = Wave({2, 100, 16}), v = Wave({2, 100, 16});
    const at::Tensor wanted =
        PlainAttention(q, k.narrow(1, 0, keys), v.narrow(1, 0, keys), shape);
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor got =
          CachedAttention(q.to(dtype), k.to(dtype).narrow(1, 0, keys),
                          v.to(dtype).narrow(1, 0, keys), shape);
      EXPECT_LT(Difference(got, wanted), dtype == at::kFloat ? 1e-6 : 0.02);
    }
  }
}

TEST(LayersTest, FrozenWeightsGetNoGradient) {
  at::Tensor x = Wave({4, 6}).to(at::kFloat).requires_grad_(true);
  const at::Tensor norm = Wave({6}).to(at::kFloat);
  const at::Tensor up = Wave({8, 6}).to(at::kFloat);
  const at::Tensor down = Wave({6, 8}).to(at::kFloat);
  at::Tensor gate = Wave({8, 6}).to(at::kFloat).requires_grad_(true);
  GatedMlp(x, {norm, gate, up, down}, Options()).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(gate.grad().defined());
  for (const at::Tensor& t : {norm, up, down}) {
    EXPECT_FALSE(t.grad().defined());
  }
}

}  // namespace
}  // namespace capstan::kernels
