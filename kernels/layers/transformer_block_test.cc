// SPDX-License-Identifier: Apache-2.0
//
// Compares the fused block with the plain one, and both with the formulas in
// double precision.
#include "kernels/layers/transformer_block.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/context/wide_gradient_sink.h"
#include "kernels/layers/block_parts.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

struct Sizes {
  int64_t batch, length, hidden, inner, heads, kv_heads, head_dim;
  bool causal = true;
};

// The block's inputs, in the order of its weights: x, norm, q, k, v, output,
// norm, gate, up, down.
class Block {
 public:
  explicit Block(const Sizes& s, at::ScalarType type = at::kFloat) : sizes_(s) {
    at::manual_seed(7);
    const auto matrix = [&](int64_t out, int64_t in) {
      return at::randn({out, in}) * 0.2;
    };
    const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
    tensors_ = {at::randn({s.batch * s.length, s.hidden}),
                at::rand({s.hidden}) + 0.5,
                matrix(q, s.hidden),
                matrix(kv, s.hidden),
                matrix(kv, s.hidden),
                matrix(s.hidden, q),
                at::rand({s.hidden}) + 0.5,
                matrix(s.inner, s.hidden),
                matrix(s.inner, s.hidden),
                matrix(s.hidden, s.inner)};
    for (at::Tensor& t : tensors_) t = t.to(type).set_requires_grad(true);
    d_out_ = at::randn(tensors_[0].sizes()).to(type);
    options_.shape = {s.batch, s.heads, s.kv_heads, s.head_dim, s.causal};
    options_.eps = 1e-5;
    options_.rope_table = RopeTable(s.length, s.head_dim, 10000.0);
    options_.parameters = {0, 1, 2, 3, 4, 5, 6};
  }

  std::vector<at::Tensor>& tensors() { return tensors_; }
  TransformerBlockOptions& options() { return options_; }
  const at::Tensor& d_out() const { return d_out_; }

  at::Tensor Forward(bool fused) const {
    const auto& t = tensors_;
    const TransformerBlockWeights weights = {
        {t[1], t[2], t[3], t[4]}, t[5], {t[6], t[7], t[8], t[9]}};
    return fused ? FusedTransformerBlock(t[0], weights, options_)
                 : PlainTransformerBlock(t[0], weights, options_);
  }

  // The output, and the gradients of all inputs.
  std::vector<at::Tensor> Run(bool fused) {
    const at::Tensor out = Forward(fused);
    Backward(out, d_out_);
    return Results(out);
  }

  // The same on other rows.
  std::vector<at::Tensor> RunOn(const at::Tensor& x, const at::Tensor& d_out,
                                bool fused) {
    tensors_[0] = x.detach().clone().set_requires_grad(true);
    const at::Tensor out = Forward(fused);
    Backward(out, d_out);
    return Results(out);
  }

  // By ATen's operators in double precision.
  std::vector<at::Tensor> RunInDouble() {
    std::vector<at::Tensor> t;
    for (const at::Tensor& x : tensors_) {
      t.push_back(x.detach().to(at::kDouble).set_requires_grad(true));
    }
    const auto norm = [&](const at::Tensor& x, const at::Tensor& weight) {
      return x * (x * x).mean({-1}, true).add(1e-5).rsqrt() * weight;
    };
    const auto heads = [&](const at::Tensor& x) {
      return x.view({sizes_.batch, sizes_.length, -1, sizes_.head_dim})
          .transpose(1, 2);
    };
    const at::Tensor table = options_.rope_table.to(at::kDouble);
    const int64_t half = sizes_.head_dim / 2;
    const at::Tensor c = table.narrow(1, 0, half),
                     s = table.narrow(1, half, half);
    const auto rope = [&](const at::Tensor& x) {
      const at::Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
      return at::cat({a * c - b * s, b * c + a * s}, 3);
    };
    const int64_t group = sizes_.heads / sizes_.kv_heads;
    const at::Tensor n = norm(t[0], t[1]);
    const at::Tensor q = rope(heads(n.mm(t[2].t())));
    const at::Tensor k =
        rope(heads(n.mm(t[3].t()))).repeat_interleave(group, 1);
    const at::Tensor v = heads(n.mm(t[4].t())).repeat_interleave(group, 1);
    // The masked scores.
    at::Tensor mask = at::ones({sizes_.length, sizes_.length}, at::kBool);
    mask = sizes_.causal ? mask.triu(1) : mask.logical_not();
    const at::Tensor p =
        (q.matmul(k.transpose(2, 3)) / std::sqrt(double(sizes_.head_dim)))
            .masked_fill(mask, -1e30)
            .softmax(-1);
    const at::Tensor mixed =
        p.matmul(v).transpose(1, 2).reshape({t[0].size(0), -1});
    const at::Tensor y = t[0] + mixed.mm(t[5].t());
    const at::Tensor m = norm(y, t[6]);
    const at::Tensor out =
        y + (at::silu(m.mm(t[7].t())) * m.mm(t[8].t())).mm(t[9].t());
    torch::autograd::backward({out}, {d_out_.to(at::kDouble)});
    std::vector<at::Tensor> results = {out.detach()};
    for (const at::Tensor& x : t) results.push_back(x.grad());
    return results;
  }

  static void Backward(const at::Tensor& out, const at::Tensor& d_out) {
    torch::autograd::backward({out}, {d_out});
  }

  std::vector<at::Tensor> Results(const at::Tensor& out) {
    std::vector<at::Tensor> results = {out.detach()};
    for (at::Tensor& t : tensors_) {
      results.push_back(t.grad().defined() ? t.grad().clone() : at::Tensor());
      t.mutable_grad().reset();
    }
    return results;
  }

 private:
  const Sizes sizes_;
  std::vector<at::Tensor> tensors_;
  at::Tensor d_out_;
  TransformerBlockOptions options_;
};

double Difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return (a.to(at::kDouble) - wide).norm().item<double>() /
         std::max(0.1, wide.norm().item<double>());
}

const std::vector<Sizes> kSizes = {
    {2, 5, 12, 20, 3, 1, 4},         {1, 1, 8, 8, 2, 2, 4},
    {3, 70, 32, 86, 4, 2, 8},        {1, 129, 48, 50, 6, 3, 16},
    {2, 5, 12, 20, 3, 1, 4, false},  {1, 1, 8, 8, 2, 2, 4, false},
    {3, 70, 32, 86, 4, 2, 8, false}, {1, 129, 48, 50, 6, 3, 16, false}};

TEST(TransformerBlockTest, FusedEqualsPlainAndTheFormulas) {
  for (const Sizes& sizes : kSizes) {
    Block block(sizes);
    const std::vector<at::Tensor> plain = block.Run(/*fused=*/false);
    const std::vector<at::Tensor> fused = block.Run(/*fused=*/true);
    const std::vector<at::Tensor> exact = block.RunInDouble();
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LT(Difference(fused[i], plain[i]), 1e-6) << "output " << i;
      EXPECT_LT(Difference(fused[i], exact[i]), 2e-6) << "output " << i;
    }
  }
}

TEST(TransformerBlockTest, ThreadsMakeNoDifferenceToValues) {
  for (const int sizes : {2, 6}) {  // causal and not
    Block block(kSizes[sizes]);
    at::set_num_threads(1);
    const std::vector<at::Tensor> one = block.Run(true);
    at::set_num_threads(3);
    const std::vector<at::Tensor> three = block.Run(true);
    at::set_num_threads(1);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_LT(Difference(three[i], one[i]), 1e-6) << "output " << i;
    }
  }
}

TEST(TransformerBlockTest, InSixteenBitsThreadsMakeNoDifferenceToBits) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    // More rows than two threads share, as norms divide them.
    Block block({4, 200, 96, 70, 4, 2, 24}, type);
    at::set_num_threads(1);
    const std::vector<at::Tensor> one = block.Run(true);
    at::set_num_threads(3);
    const std::vector<at::Tensor> three = block.Run(true);
    at::set_num_threads(1);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(at::equal(three[i], one[i])) << "output " << i;
    }
  }
}

TEST(TransformerBlockTest, FrozenWeightsGetNoGradient) {
  Block block(kSizes[0]);
  const std::vector<at::Tensor> all = block.Run(true);
  for (int i : {0, 3, 6, 9}) block.tensors()[i].set_requires_grad(false);
  const std::vector<at::Tensor> some = block.Run(true);
  for (int i = 0; i < 10; ++i) {
    const bool frozen = i % 3 == 0;
    EXPECT_EQ(some[1 + i].defined(), !frozen) << i;
    if (frozen) continue;
    EXPECT_TRUE(at::equal(some[1 + i], all[1 + i])) << i;
  }
}

// In both modes, fused and plain: values and gradients to x; those of weights
// are sums over the documents.
TEST(TransformerBlockTest, PackedDocumentsAreAsIfAlone) {
  const std::vector<int64_t> lengths = {3, 70, 1, 66};
  for (const bool causal : {true, false}) {
    for (const bool fused : {true, false}) {
      SCOPED_TRACE(testing::Message() << causal << fused);
      Block block({1, 140, 32, 40, 4, 2, 8, causal});
      const at::Tensor whole_x = block.tensors()[0].detach();
      const at::Tensor whole_d = block.d_out();
      const at::Tensor table = block.options().rope_table;
      std::vector<at::Tensor> positions;
      for (int64_t n : lengths) positions.push_back(at::arange(n));
      const at::Tensor all = at::cat(positions).to(at::kLong);
      block.options().packing =
          c10::make_intrusive<PackedRows>(all.unsqueeze(0));
      block.options().rope_table = table.index_select(0, all);
      const std::vector<at::Tensor> packed = block.Run(fused);
      block.options().packing = nullptr;
      std::vector<at::Tensor> sums(packed.size());
      int64_t begin = 0;
      for (int64_t n : lengths) {
        block.options().rope_table = table.narrow(0, 0, n);
        const std::vector<at::Tensor> alone = block.RunOn(
            whole_x.narrow(0, begin, n), whole_d.narrow(0, begin, n), fused);
        for (int i : {0, 1}) {
          EXPECT_LT(Difference(packed[i].narrow(0, begin, n), alone[i]), 1e-6)
              << "output " << i << " at " << begin;
        }
        for (size_t i = 2; i < sums.size(); ++i) {
          sums[i] = sums[i].defined() ? sums[i] + alone[i] : alone[i];
        }
        begin += n;
      }
      for (size_t i = 2; i < sums.size(); ++i) {
        EXPECT_LT(Difference(packed[i], sums[i]), 2e-6) << "output " << i;
      }
    }
  }
}

TEST(TransformerBlockTest, ATokenOfABidirectionalBlockSeesLaterOnes) {
  for (const bool causal : {true, false}) {
    Block block({1, 5, 12, 20, 3, 1, 4, causal});
    const at::Tensor before = block.Forward(true).detach();
    const at::Tensor x = block.tensors()[0].detach().clone();
    x.select(0, 4).neg_();
    const at::Tensor after =
        block.RunOn(x, block.d_out(), /*fused=*/true)[0].detach();
    EXPECT_EQ(at::equal(before[0], after[0]), causal);
  }
}

TEST(TransformerBlockTest, BackwardRunsOnce) {
  Block block(kSizes[0]);
  const at::Tensor out = block.Forward(true);
  torch::autograd::backward({out}, {block.d_out()}, /*retain_graph=*/true);
  EXPECT_THROW(torch::autograd::backward({out}, {block.d_out()}), c10::Error);
}

// Keeps the sums of the matrices, float32 for 16 bits, too.
class Sums final : public GradientSink, public WideGradientSink {
 public:
  explicit Sums(bool wide = false) : wide_(wide) {}
  Place Open(int parameter) override {
    return wide_ ? Place() : PlaceOf(parameter);
  }
  Place OpenWide(int parameter) override {
    return wide_ ? PlaceOf(parameter) : Place();
  }
  std::vector<std::vector<int64_t>> shapes;
  at::Tensor sums_[7];

 private:
  Place PlaceOf(int parameter) {
    at::Tensor& sum = sums_[parameter];
    const bool first = !sum.defined();
    if (first) sum = at::full(shapes[parameter], 1e30f);  // to be overwritten
    return {sum.detach(), !first};
  }
  const bool wide_;
};

TEST(TransformerBlockTest, WritesAndAddsGradientsInTheirPlaces) {
  Block block(kSizes[0]);
  const std::vector<at::Tensor> expected = block.Run(true);
  Sums sums;
  for (int i : {2, 3, 4, 5, 7, 8, 9}) {
    sums.shapes.push_back(block.tensors()[i].sizes().vec());
  }
  block.options().sink = &sums;
  const std::vector<at::Tensor> placed = block.Run(true);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::equal(placed[i], expected[i])) << "output " << i;
  }
  block.Run(true);
  EXPECT_LT(Difference(sums.sums_[0], expected[1 + 2] * 2), 1e-6);  // q
  EXPECT_LT(Difference(sums.sums_[6], expected[1 + 9] * 2), 1e-6);  // down
}

TEST(TransformerBlockTest, SixteenBitMatricesHaveFloat32Sums) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    Block block(kSizes[2], type);
    const std::vector<at::Tensor> rounded = block.Run(true);
    Sums fused(/*wide=*/true), plain(/*wide=*/true);
    for (Sums* sums : {&fused, &plain}) {
      for (int i : {2, 3, 4, 5, 7, 8, 9}) {
        sums->shapes.push_back(block.tensors()[i].sizes().vec());
      }
      block.options().sink = sums;
      for (int times = 0; times < 2; ++times) {
        const std::vector<at::Tensor> got = block.Run(sums == &fused);
        EXPECT_FALSE(got[1 + 2].defined());  // q's isn't returned
        EXPECT_TRUE(got[1 + 1].defined());   // the norm's is
      }
    }
    for (int i = 0; i < 7; ++i) {
      ASSERT_EQ(fused.sums_[i].scalar_type(), at::kFloat);
      EXPECT_TRUE(at::equal(fused.sums_[i], plain.sums_[i])) << i;
      const at::Tensor once = rounded[1 + (i < 4 ? 2 : 3) + i];
      EXPECT_LT(Difference(fused.sums_[i] / 2, once), 0.004) << i;
      // Not rounded in between.
      EXPECT_FALSE(at::equal(fused.sums_[i], once.to(at::kFloat) * 2)) << i;
    }
  }
}

}  // namespace
}  // namespace capstan::kernels
