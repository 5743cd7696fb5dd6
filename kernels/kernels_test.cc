// SPDX-License-Identifier: Apache-2.0
//
// The fused operators against plain formulas of ATen's operators in float64
// under autograd: values and gradients, at odd sizes.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/attention.h"
#include "kernels/attention_input.h"
#include "kernels/cross_entropy.h"
#include "kernels/gated_mlp.h"
#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/token_loss.h"

namespace capstan {
namespace kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operator = std::function<at::Tensor(const Tensors&)>;

constexpr double kEps = 1e-5;

// Smooth numbers without a pattern that a bug could hide in.
at::Tensor Wave(at::IntArrayRef shape, double size = 1.0) {
  static double phase = 0.0;
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  std::vector<double> x(n);
  for (double& v : x) v = size * std::sin(phase += 1.618);
  return at::tensor(x, at::kDouble).view(shape);
}

// Runs `op` on copies of the inputs in `dtype`, and backward from a fixed
// weighting of its output; returns the output and each input's gradient.
Tensors RunBoth(const Operator& op, const Tensors& inputs,
                at::ScalarType dtype) {
  Tensors leaves;
  for (const at::Tensor& t : inputs) {
    leaves.push_back(t.is_floating_point()
                         ? t.to(dtype).detach().clone().requires_grad_(true)
                         : t);
  }
  const at::Tensor y = op(leaves);
  std::vector<double> weights(y.numel());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::cos(0.7 * i);
  (y * at::tensor(weights, at::kDouble).view(y.sizes()).to(y.dtype()))
      .sum()
      .backward();
  Tensors results = {y.detach()};
  for (const at::Tensor& leaf : leaves) {
    if (leaf.is_floating_point()) results.push_back(leaf.grad());
  }
  return results;
}

// The greatest difference of the two, relative to the reference's size.
double Difference(const at::Tensor& got, const at::Tensor& wanted) {
  if (!got.defined() || got.sizes() != wanted.sizes()) return 1e30;
  const double size = std::max(1.0, wanted.abs().max().item<double>());
  return (got.to(at::kDouble) - wanted).abs().max().item<double>() / size;
}

// `fused` in float32 and in bfloat16 (the composed path) against `plain` in
// float64.
void ExpectSame(const Operator& fused, const Operator& plain,
                const Tensors& inputs) {
  const Tensors wanted = RunBoth(plain, inputs, at::kDouble);
  const Tensors in_float = RunBoth(fused, inputs, at::kFloat);
  const Tensors in_half = RunBoth(fused, inputs, at::kBFloat16);
  ASSERT_EQ(in_float.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_LT(Difference(in_float[i], wanted[i]), 3e-6) << "result " << i;
    EXPECT_LT(Difference(in_half[i], wanted[i]), 0.08) << "result " << i;
  }
}

at::Tensor PlainNorm(const at::Tensor& x, const at::Tensor& weight) {
  return x * at::rsqrt(at::mean(x * x, {-1}, true) + kEps) * weight;
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
  const at::Tensor hidden =
      at::ones({queries, keys}, at::kBool).tril(keys - queries).logical_not();
  const at::Tensor scores =
      (at::matmul(qh, kh.transpose(2, 3)) / std::sqrt(double(hd)))
          .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return at::matmul(at::softmax(scores, -1), vh)
      .transpose(1, 2)
      .reshape(q.sizes());
}

TEST(KernelsTest, RmsNorm) {
  for (const auto& [rows, n] : {std::pair(1, 1), {3, 7}, {5, 64}, {130, 77}}) {
    ExpectSame([](const Tensors& in) { return RmsNorm(in[0], in[1], kEps); },
               [](const Tensors& in) { return PlainNorm(in[0], in[1]); },
               {Wave({rows, n}, 2.0), Wave({n})});
  }
}

TEST(KernelsTest, RmsNormOnThreadsAddsUpTheWeightsGradient) {
  const int before = at::get_num_threads();
  const Tensors inputs = {Wave({4000, 33}), Wave({33})};
  const Operator op = [](const Tensors& in) {
    return RmsNorm(in[0], in[1], kEps);
  };
  at::set_num_threads(1);
  const Tensors one = RunBoth(op, inputs, at::kFloat);
  at::set_num_threads(3);
  const Tensors three = RunBoth(op, inputs, at::kFloat);
  at::set_num_threads(before);
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_LT(Difference(three[i], one[i].to(at::kDouble)), 5e-6);
  }
}

TEST(KernelsTest, LinearAdd) {
  ExpectSame([](const Tensors& in) { return LinearAdd(in[0], in[1], in[2]); },
             [](const Tensors& in) { return in[2] + at::linear(in[0], in[1]); },
             {Wave({9, 7}), Wave({5, 7}), Wave({9, 5})});
}

TEST(KernelsTest, RopeTableHoldsAnglesByPosition) {
  const at::Tensor table = RopeTable(50, 6, 100.0);
  for (int64_t p : {0, 1, 49}) {
    for (int64_t i = 0; i < 3; ++i) {
      const double angle = p * std::pow(100.0, -2.0 * i / 6.0);
      EXPECT_NEAR(table[p][i].item<double>(), std::cos(angle), 1e-5);
      EXPECT_NEAR(table[p][3 + i].item<double>(), std::sin(angle), 1e-5);
    }
  }
}

TEST(KernelsTest, AttentionInput) {
  // Two sequences of 5, three query heads and one of keys, heads of 6.
  const at::Tensor table = RopeTable(9, 6, 100.0).narrow(0, 4, 5);
  ExpectSame(
      [&](const Tensors& in) {
        const QueryKeyValue out =
            AttentionInput(in[0], {in[1], in[2], in[3], in[4]}, kEps, table);
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

TEST(KernelsTest, GatedMlp) {
  ExpectSame(
      [](const Tensors& in) {
        return GatedMlp(in[0], {in[1], in[2], in[3], in[4]}, kEps);
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

TEST(KernelsTest, CausalAttention) {
  // Shorter than a vector, than a block of queries, around and beyond one.
  for (int64_t length : {1, 5, 16, 63, 64, 65, 150}) {
    for (int64_t kv_heads : {1, 2, 6}) {
      const AttentionShape shape{2, 6, kv_heads, 4};
      ExpectSame(
          [&](const Tensors& in) {
            return CausalAttention(in[0], in[1], in[2], shape);
          },
          [&](const Tensors& in) {
            return PlainAttention(in[0], in[1], in[2], shape);
          },
          {Wave({2 * length, 24}), Wave({2 * length, 4 * kv_heads}),
           Wave({2 * length, 4 * kv_heads})});
    }
  }
}

TEST(KernelsTest, CachedAttentionReadsPartOfALongerCache) {
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

at::Tensor PlainLoss(const at::Tensor& hidden, const at::Tensor& weight,
                     const at::Tensor& targets) {
  const at::Tensor logs = at::log_softmax(at::linear(hidden, weight), -1);
  const at::Tensor picked =
      logs.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -(picked * targets.ge(0).to(picked.dtype())).sum();
}

const std::vector<int64_t> kTargets = {3, -100, 0, 10, 10, -100, 7};

TEST(KernelsTest, HeadInPiecesOfRows) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  // All rows at once; two, three and seven pieces.
  for (int64_t rows : {7, 6, 3, 1}) {
    ExpectSame(
        [&](const Tensors& in) {
          return HeadCrossEntropySum(in[0], in[1], targets, TiedGradient(),
                                     rows * 11 * in[1].element_size());
        },
        [&](const Tensors& in) { return PlainLoss(in[0], in[1], targets); },
        {Wave({7, 5}), Wave({11, 5}, 3.0)});
  }
}

TEST(KernelsTest, TiedWeightGetsOneGradient) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  const at::Tensor tokens = at::tensor({0, 3, 3, 10, 2, 3, 0}, at::kLong);
  for (int64_t rows : {7, 3}) {
    ExpectSame(
        [&](const Tensors& in) {
          const auto tied = c10::make_intrusive<HeadGradient>();
          const at::Tensor x = Embedding(in[0], tokens, tied);
          return HeadCrossEntropySum(RmsNorm(x, in[1], kEps), in[0], targets,
                                     tied, rows * 11 * in[0].element_size());
        },
        [&](const Tensors& in) {
          const at::Tensor x = at::embedding(in[0], tokens);
          return PlainLoss(PlainNorm(x, in[1]), in[0], targets);
        },
        {Wave({11, 5}, 2.0), Wave({5})});
  }
}

TEST(KernelsTest, EmbeddingAlone) {
  const at::Tensor tokens = at::tensor({4, 1, 4, 4}, at::kLong);
  ExpectSame([&](const Tensors& in) { return Embedding(in[0], tokens, {}); },
             [&](const Tensors& in) { return at::embedding(in[0], tokens); },
             {Wave({6, 9})});
}

TEST(KernelsTest, HeadScalesByTheIncomingGradient) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  for (int64_t rows : {7, 2}) {
    at::Tensor hidden = Wave({7, 5}).to(at::kFloat).requires_grad_(true);
    at::Tensor weight = Wave({11, 5}).to(at::kFloat).requires_grad_(true);
    Tensors at_one;
    for (double scale : {1.0, 1024.0}) {
      hidden.mutable_grad().reset();
      weight.mutable_grad().reset();
      (HeadCrossEntropySum(hidden, weight, targets, {}, rows * 44) * scale)
          .backward();
      if (scale == 1.0) {
        at_one = {hidden.grad(), weight.grad()};
      } else {
        const auto wanted = [&](int i) {
          return at_one[i].to(at::kDouble) * scale;
        };
        EXPECT_LT(Difference(hidden.grad(), wanted(0)), 1e-6);
        EXPECT_LT(Difference(weight.grad(), wanted(1)), 1e-6);
      }
    }
  }
}

TEST(KernelsTest, FrozenHeadPassesOnTheGradientOfHidden) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  for (int64_t rows : {7, 2}) {
    const at::Tensor weight = Wave({11, 5});
    ExpectSame(
        [&](const Tensors& in) {
          return HeadCrossEntropySum(in[0], weight.to(in[0].dtype()), targets,
                                     {}, rows * 44);
        },
        [&](const Tensors& in) { return PlainLoss(in[0], weight, targets); },
        {Wave({7, 5})});
  }
}

TEST(KernelsTest, NoTargetsNoLoss) {
  const at::Tensor targets = at::tensor({-100, -100, -1}, at::kLong);
  at::Tensor hidden = Wave({3, 4}).to(at::kFloat).requires_grad_(true);
  at::Tensor weight = Wave({5, 4}).to(at::kFloat).requires_grad_(true);
  const at::Tensor loss = HeadCrossEntropySum(hidden, weight, targets, {});
  EXPECT_EQ(loss.item<float>(), 0.0f);
  loss.backward();
  EXPECT_EQ(hidden.grad().abs().max().item<float>(), 0.0f);
  EXPECT_EQ(weight.grad().abs().max().item<float>(), 0.0f);
}

TEST(KernelsTest, WithoutGradientsTheLossIsTheSame) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  at::Tensor hidden = Wave({7, 5}).to(at::kFloat).requires_grad_(true);
  const at::Tensor weight = Wave({11, 5}).to(at::kFloat);
  const float wanted =
      HeadCrossEntropySum(hidden, weight, targets, {}).item<float>();
  at::AutoGradMode no_gradients(false);
  const at::Tensor loss = HeadCrossEntropySum(hidden, weight, targets, {}, 88);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_NEAR(loss.item<float>(), wanted, 1e-5);
}

TEST(KernelsTest, TargetOutsideTheVocabularyIsAnError) {
  at::Tensor logits = Wave({1, 4}).to(at::kFloat);
  EXPECT_ANY_THROW(CrossEntropySum(logits, at::tensor({4}, at::kLong), false));
}

TEST(KernelsTest, FrozenWeightsGetNoGradient) {
  at::Tensor x = Wave({4, 6}).to(at::kFloat).requires_grad_(true);
  const at::Tensor norm = Wave({6}).to(at::kFloat);
  const at::Tensor up = Wave({8, 6}).to(at::kFloat);
  const at::Tensor down = Wave({6, 8}).to(at::kFloat);
  at::Tensor gate = Wave({8, 6}).to(at::kFloat).requires_grad_(true);
  GatedMlp(x, {norm, gate, up, down}, kEps).sum().backward();
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(gate.grad().defined());
  for (const at::Tensor& t : {norm, up, down}) {
    EXPECT_FALSE(t.grad().defined());
  }
}

}  // namespace
}  // namespace kernels
}  // namespace capstan
