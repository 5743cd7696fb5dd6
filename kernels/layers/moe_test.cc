// SPDX-License-Identifier: Apache-2.0
//
// A mixture of experts against the formulas in double precision.
#include "kernels/layers/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
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
#include <optional>
#include <vector>

#include "kernels/layers/gpu_path_for_test.h"
#include "kernels/layers/grouped_experts.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kRows = 60, kRank = 2;

struct Case {
  int64_t experts, top_k;
  bool normalise = true, adapters = false;
  int64_t hidden = 12, inner = 10;
};

// x, norm, router, and each expert's gate, up and down, each followed by its
// adapter.
struct Inputs {
  explicit Inputs(const Case& c) : per(c.adapters ? 9 : 3) {
    tensors = {Wave({kRows, c.hidden}), Wave({c.hidden}) * 0.3 + 1.0,
               Wave({c.experts, c.hidden}, 0.8)};
    for (int64_t e = 0; e < c.experts; ++e) {
      for (int m = 0; m < 3; ++m) {
        const int64_t out = m < 2 ? c.inner : c.hidden;
        const int64_t in = m < 2 ? c.hidden : c.inner;
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

// Copies in a memory each, or in one: as they follow one another, or the last
// first.
enum class Memory { kApart, kAscending, kDescending };
Tensors Copies(const Tensors& of, at::ScalarType type, Memory memory) {
  Tensors copies;
  for (const at::Tensor& t : of) copies.push_back(t.to(type).clone());
  if (memory == Memory::kApart) return copies;
  int64_t numel = 0;
  for (const at::Tensor& t : of) numel += t.numel();
  const at::Tensor flat = at::empty({numel}, type);
  int64_t at = 0;
  for (size_t i = 0; i < of.size(); ++i) {
    at::Tensor& t =
        copies[memory == Memory::kAscending ? i : of.size() - 1 - i];
    t = flat.narrow(0, at, t.numel()).view(t.sizes()).copy_(t).variable_data();
    at += t.numel();
  }
  return copies;
}

// The output, the sums, and all gradients of a weighting of output and
// probabilities.
template <typename F>
Tensors Graph(const Tensors& inputs, at::ScalarType type, const F& op,
              Memory memory = Memory::kApart) {
  Tensors t = Copies(inputs, type, memory);
  for (at::Tensor& in : t) in.set_requires_grad(true);
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

// With 40 experts some get no row.
const Case kGrouped[] = {{4, 2, true, false, 16, 8},
                         {1, 1, true, false, 16, 8},
                         {40, 2, false, false, 8, 24}};

TEST(MoeTest, GroupedProductsEqualTheFormulas) {
  const GpuPathForTest on_gpu;
  for (const Case& c : kGrouped) {
    const Inputs in(c);
    const Tensors exact = Graph(in.tensors, at::kDouble, [&](const Tensors& t) {
      return Reference(c, in.per, t);
    });
    for (const Memory memory :
         {Memory::kApart, Memory::kAscending, Memory::kDescending}) {
      SCOPED_TRACE(testing::Message()
                   << c.experts << " " << static_cast<int>(memory));
      const auto moe = [&](const Tensors& t) {
        return MoeMlp(t[0], Weights(c, in.per, t), OptionsOf(c));
      };
      const Tensors got = Graph(in.tensors, at::kFloat, moe, memory);
      for (size_t i = 0; i < exact.size(); ++i) {
        ASSERT_TRUE(got[i].defined()) << i;
        EXPECT_LT(Distance(got[i], exact[i]), 2e-5) << "result " << i;
      }
    }
  }
}

// Frozen experts have no gradients, and no rows beyond those that chose them.
TEST(MoeTest, GroupedProductsOfFrozenMatrices) {
  const GpuPathForTest on_gpu;
  const Case c = kGrouped[0];
  const Inputs in(c);
  const auto graph = [&](bool frozen) {
    return Graph(in.tensors, at::kFloat, [&](const Tensors& t) {
      Tensors used = t;
      for (size_t i = 3; frozen && i < t.size(); ++i) used[i] = t[i].detach();
      return MoeMlp(t[0], Weights(c, in.per, used), OptionsOf(c));
    });
  };
  const Tensors whole = graph(false), frozen = graph(true);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_LT(Distance(frozen[i], whole[i]), 1e-6) << "result " << i;
  }
  for (size_t i = 6; i < frozen.size(); ++i) EXPECT_FALSE(frozen[i].defined());
}

TEST(MoeTest, GateAndUpAgainAreTheSameBits) {
  for (const bool grouped : {false, true}) {
    std::optional<GpuPathForTest> on_gpu;
    if (grouped) on_gpu.emplace();
    for (const Case& c : kGrouped) {
      SCOPED_TRACE(c.experts);
      const Inputs in(c);
      const auto graph = [&] {
        return Graph(in.tensors, at::kFloat, [&](const Tensors& t) {
          return MoeMlp(t[0], Weights(c, in.per, t), OptionsOf(c));
        });
      };
      const Tensors kept = graph();
      const RecomputingMlp recomputing;
      const Tensors again = graph();
      for (size_t i = 0; i < kept.size(); ++i) {
        EXPECT_TRUE(at::equal(again[i], kept[i])) << "result " << i;
      }
    }
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

// Sums of the experts' matrices in one memory; twice, which adds.
void ExpectSums(const Case& c, Memory memory) {
  SCOPED_TRACE(static_cast<int>(memory));
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
  const Tensors places =
      Copies({in.tensors.begin() + 3, in.tensors.end()}, at::kFloat, memory);
  for (int i = 0; i < 3 * c.experts; ++i) {
    sums.sums[i] = at::Tensor(places[i]).fill_(1e30f);
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

TEST(MoeTest, WritesAndAddsGradientsInTheirPlaces) {
  ExpectSums({40, 2}, Memory::kApart);
  const GpuPathForTest on_gpu;
  for (const Memory memory :
       {Memory::kApart, Memory::kAscending, Memory::kDescending}) {
    ExpectSums(kGrouped[2], memory);
  }
}

TEST(StackMatricesTest, TakesWhatIsEquallyFarApart) {
  const at::Tensor flat = at::arange(60, at::kFloat);
  const auto matrix = [&](int64_t at) {
    return flat.narrow(0, at, 6).view({2, 3});
  };
  const at::Tensor stack =
      StackMatrices({matrix(6), matrix(12), matrix(26), matrix(32)}, 2);
  ASSERT_TRUE(stack.defined());
  EXPECT_EQ(stack.sizes(), at::IntArrayRef({2, 4, 3}));
  EXPECT_EQ(stack.data_ptr(), matrix(6).data_ptr());
  EXPECT_TRUE(stack[1].equal(flat.narrow(0, 26, 12).view({4, 3})));
  EXPECT_TRUE(StackMatrices({matrix(0), matrix(10), matrix(20)}, 1).defined());
  EXPECT_TRUE(StackMatrices({matrix(4)}, 1).defined());
  // Not as far apart; not next to one another; over one another; backwards;
  // elsewhere.
  EXPECT_FALSE(StackMatrices({matrix(0), matrix(10), matrix(21)}, 1).defined());
  EXPECT_FALSE(StackMatrices({matrix(0), matrix(7), matrix(20), matrix(27)}, 2)
                   .defined());
  EXPECT_FALSE(StackMatrices({matrix(0), matrix(3), matrix(6)}, 1).defined());
  EXPECT_FALSE(StackMatrices({matrix(20), matrix(10)}, 1).defined());
  EXPECT_FALSE(StackMatrices({matrix(0), matrix(10).clone()}, 1).defined());
}

// All else is as with the sum and no gradient to it.
TEST(MoeTest, ProbabilitiesNeedNotBeSummed) {
  const Case c = {4, 2};
  const Inputs in(c);
  Tensors outputs, gradients;
  for (const bool sums : {true, false}) {
    Tensors t = Copies(in.tensors, at::kFloat, Memory::kApart);
    for (at::Tensor& tensor : t) tensor.set_requires_grad(true);
    MoeOptions options = OptionsOf(c);
    options.sums_probability = sums;
    const MoeResult result = MoeMlp(t[0], Weights(c, in.per, t), options);
    EXPECT_EQ(result.probability.defined(), sums);
    torch::autograd::backward({result.output},
                              {at::full(result.output.sizes(), 0.5f)});
    outputs.push_back(result.output.detach());
    gradients.push_back(t[0].grad());
  }
  EXPECT_TRUE(outputs[0].equal(outputs[1]));
  EXPECT_TRUE(gradients[0].equal(gradients[1]));
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
