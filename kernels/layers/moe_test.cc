// SPDX-License-Identifier: Apache-2.0
//
// A mixture of experts against the formulas in double precision.
#include "kernels/layers/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kRows = 60, kHidden = 12, kInner = 10, kRank = 2;

struct Case {
  int64_t experts, top_k;
  bool normalise = true, adapters = false;
};

// x, norm, router, and each expert's gate, up and down, each followed by its
// adapter.
struct Inputs {
  explicit Inputs(const Case& c) : per(c.adapters ? 9 : 3) {
    tensors = {Wave({kRows, kHidden}), Wave({kHidden}) * 0.3 + 1.0,
               Wave({c.experts, kHidden}, 0.8)};
    for (int64_t e = 0; e < c.experts; ++e) {
      for (int m = 0; m < 3; ++m) {
        const int64_t out = m < 2 ? kInner : kHidden;
        const int64_t in = m < 2 ? kHidden : kInner;
        tensors.push_back(Wave({out, in}, 0.4));
        if (!c.adapters) continue;
        tensors.push_back(Wave({kRank, in}, 0.4));
        tensors.push_back(Wave({out, kRank}, 0.4));
      }
    }
  }
  Tensors tensors;
  int per;  // tensors an expert
};

MoeWeights Weights(const Case& c, int per, const Tensors& t) {
  MoeWeights w;
  w.norm = t[1];
  w.router = t[2];
  for (int64_t e = 0; e < c.experts; ++e) {
    const at::Tensor* const of = &t[3 + e * per];
    const int step = per / 3;
    ExpertWeights expert;
    expert.gate = of[0];
    expert.up = of[step];
    expert.down = of[2 * step];
    for (int m = 0; c.adapters && m < 3; ++m) {
      expert.adapters[m].a = of[m * step + 1];
      expert.adapters[m].b = of[m * step + 2];
      expert.adapters[m].scale = 2.0;
    }
    w.experts.push_back(std::move(expert));
  }
  return w;
}

MoeOptions OptionsOf(const Case& c) {
  MoeOptions options;
  options.eps = kEps;
  options.top_k = c.top_k;
  options.normalise = c.normalise;
  return options;
}

// Each expert on all rows, weighted.
MoeResult Reference(const Case& c, int per, const Tensors& t) {
  const MoeWeights w = Weights(c, per, t);
  const at::Tensor n = PlainNorm(t[0], t[1]);
  const at::Tensor p = at::softmax(n.mm(t[2].t()), -1);
  const auto [value, index] = at::topk(p, c.top_k, -1);
  const at::Tensor kept = at::zeros_like(p).scatter(1, index, 1.0);
  at::Tensor share = p * kept;
  if (c.normalise) share = share / share.sum({-1}, true);
  const auto linear = [&](const Weight& weight, const Adapter& adapter,
                          const at::Tensor& x) {
    const at::Tensor y = x.mm(weight.tensor.t());
    return adapter.defined() ? y + 2.0 * x.mm(adapter.a.t()).mm(adapter.b.t())
                             : y;
  };
  at::Tensor y = t[0];
  for (int64_t e = 0; e < c.experts; ++e) {
    const ExpertWeights& expert = w.experts[e];
    const at::Tensor inner =
        at::silu(linear(expert.gate, expert.adapters[0], n)) *
        linear(expert.up, expert.adapters[1], n);
    y = y + share.select(1, e).unsqueeze(1) *
                linear(expert.down, expert.adapters[2], inner);
  }
  return {y, p.sum({0}), kept.sum({0})};
}

// The output, the sums, and all gradients of a weighting of output and
// probabilities.
template <typename F>
Tensors Graph(const Tensors& inputs, at::ScalarType type, const F& op) {
  Tensors t;
  for (const at::Tensor& in : inputs) {
    t.push_back(in.to(type).clone().set_requires_grad(true));
  }
  const MoeResult result = op(t);
  const at::Tensor d =
      at::arange(result.output.numel()).cos().view(result.output.sizes());
  const at::Tensor dp = at::arange(result.probability.numel()).sin();
  torch::autograd::backward(
      {result.output, result.probability},
      {d.to(type), dp.to(result.probability.scalar_type())});
  EXPECT_FALSE(result.chosen.requires_grad());
  Tensors results = {result.output.detach(), result.probability.detach(),
                     result.chosen.detach()};
  for (const at::Tensor& in : t) results.push_back(in.grad());
  return results;
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return (a.to(at::kDouble) - wide).norm().item<double>() /
         std::max(0.1, wide.norm().item<double>());
}

TEST(MoeTest, EqualsTheFormulas) {
  // With 40 experts some get no row.
  for (const Case& c : {Case{4, 2}, Case{4, 1}, Case{5, 3, false}, Case{3, 3},
                        Case{40, 2}, Case{4, 2, true, true}}) {
    SCOPED_TRACE(testing::Message() << c.experts << " " << c.top_k);
    const Inputs in(c);
    const Tensors exact = Graph(in.tensors, at::kDouble, [&](const Tensors& t) {
      return Reference(c, in.per, t);
    });
    const auto moe = [&](const Tensors& t) {
      return MoeMlp(t[0], Weights(c, in.per, t), OptionsOf(c));
    };
    const Tensors got = Graph(in.tensors, at::kFloat, moe);
    for (size_t i = 0; i < exact.size(); ++i) {
      ASSERT_TRUE(got[i].defined()) << i;
      EXPECT_LT(Distance(got[i], exact[i]), 2e-5) << "result " << i;
    }
    // Near ties are decided otherwise in 16 bits, for a few rows.
    const Tensors rounded = Graph(in.tensors, at::kBFloat16, moe);
    EXPECT_LT(Distance(rounded[0], exact[0]), 0.3);
    EXPECT_LT(Distance(rounded[1], exact[1]), 0.02);
  }
}

class Sums final : public GradientSink {
 public:
  Place Open(int parameter) override {
    at::Tensor& sum = sums.at(parameter);
    const bool add = !first.count(parameter);
    first.erase(parameter);
    return {sum.detach(), add};
  }
  std::map<int, at::Tensor> sums;
  std::map<int, bool> first;
};

TEST(MoeTest, WritesAndAddsGradientsInTheirPlaces) {
  const Case c = {40, 2};
  const Inputs in(c);
  const Tensors wanted = Graph(in.tensors, at::kFloat, [&](const Tensors& t) {
    return MoeMlp(t[0], Weights(c, in.per, t), OptionsOf(c));
  });
  Sums sums;
  MoeOptions options = OptionsOf(c);
  options.sink = &sums;
  for (int e = 0; e < c.experts; ++e) {
    options.parameters.push_back({3 * e, 3 * e + 1, 3 * e + 2});
  }
  for (int i = 0; i < 3 * c.experts; ++i) {
    sums.sums[i] = at::full(in.tensors[3 + i].sizes(), 1e30f);
    sums.first[i] = true;
  }
  for (const double times : {1.0, 2.0}) {
    Graph(in.tensors, at::kFloat, [&](const Tensors& t) {
      return MoeMlp(t[0], Weights(c, in.per, t), options);
    });
    for (int i = 0; i < 3 * c.experts; ++i) {
      // After the output, the sums, x, norm and the router.
      EXPECT_LT(Distance(sums.sums[i], wanted[6 + i] * times), 1e-6) << i;
    }
  }
}

TEST(MoeTest, BackwardRunsOnce) {
  const Case c = {4, 2};
  const Inputs in(c);
  Tensors t;
  for (const at::Tensor& input : in.tensors) {
    t.push_back(input.to(at::kFloat).set_requires_grad(true));
  }
  const at::Tensor y = MoeMlp(t[0], Weights(c, in.per, t), OptionsOf(c)).output;
  const at::Tensor d = at::full(y.sizes(), 1.0f);
  torch::autograd::backward({y}, {d}, /*retain_graph=*/true);
  EXPECT_THROW(torch::autograd::backward({y}, {d}), c10::Error);
}

}  // namespace
}  // namespace capstan::kernels
