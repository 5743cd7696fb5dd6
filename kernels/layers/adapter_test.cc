// SPDX-License-Identifier: Apache-2.0
//
// Compares low-rank adapters in the operators of a block with plain formulas,
// and checks dropout.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>

#include "base/random.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/quant/pack_nf4_for_test.h"
#include "kernels/quant/packed_linear.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr double kScale = 0.75;
constexpr size_t kFrozen = 1;  // DoRA's matrix, among a layer's tensors

Adapter MakeAdapter(const at::Tensor& a, const at::Tensor& b) {
  Adapter adapter;
  adapter.a = a;
  adapter.b = b;
  adapter.scale = kScale;
  return adapter;
}

// x (W + scale B A)^T.
at::Tensor Plain(const at::Tensor& x, const at::Tensor& w, const at::Tensor& a,
                 const at::Tensor& b) {
  return x.mm(w.t()) + kScale * x.mm(a.t()).mm(b.t());
}

TransformerBlockOptions Options() {
  TransformerBlockOptions options;
  options.eps = kEps;
  return options;
}

TEST(AdapterTest, AttentionOutput) {
  ExpectSame(
      [](const Tensors& in) {
        TransformerBlockWeights w;
        w.output = in[1];
        w.output_adapter = MakeAdapter(in[3], in[4]);
        return AttentionOutput(in[0], in[2], w, Options());
      },
      [](const Tensors& in) {
        return in[2] + Plain(in[0], in[1], in[3], in[4]);
      },
      {Wave({5, 7}), Wave({3, 7}), Wave({5, 3}), Wave({2, 7}), Wave({3, 2})});
}

TEST(AdapterTest, AttentionInput) {
  constexpr int64_t kLength = 3, kHeadDim = 4;
  const at::Tensor table = RopeTable(kLength, kHeadDim, 100.0);
  const auto rotated = [&](const at::Tensor& x) {
    const at::Tensor t = table.to(x.dtype()).unsqueeze(1);
    const at::Tensor heads = x.view({-1, kLength, x.size(1) / 4, 4});
    const at::Tensor a = heads.narrow(3, 0, 2), b = heads.narrow(3, 2, 2);
    const at::Tensor c = t.narrow(2, 0, 2), s = t.narrow(2, 2, 2);
    return at::cat({a * c - b * s, b * c + a * s}, 3).view(x.sizes());
  };
  // x, norm, q, k, v, and adapters of q and v.
  ExpectSame(
      [&](const Tensors& in) {
        AttentionWeights w = {in[1], in[2], in[3], in[4]};
        w.adapters[0] = MakeAdapter(in[5], in[6]);
        w.adapters[2] = MakeAdapter(in[7], in[8]);
        TransformerBlockOptions options = Options();
        options.shape.head_dim = kHeadDim;
        options.rope_table = table;
        const QueryKeyValue out = AttentionInput(in[0], w, options);
        return at::cat({out.q, out.k, out.v}, 1);
      },
      [&](const Tensors& in) {
        const at::Tensor n = PlainNorm(in[0], in[1]);
        return at::cat(
            {rotated(Plain(n, in[2], in[5], in[6])), rotated(n.mm(in[3].t())),
             Plain(n, in[4], in[7], in[8])},
            1);
      },
      {Wave({6, 5}), Wave({5}), Wave({8, 5}), Wave({4, 5}), Wave({4, 5}),
       Wave({3, 5}), Wave({8, 3}), Wave({3, 5}), Wave({4, 3})});
}

TEST(AdapterTest, GatedMlp) {
  for (const bool all : {true, false}) {
    // x, norm, gate, up, down, and adapters of gate, up, down.
    ExpectSame(
        [&](const Tensors& in) {
          GatedMlpWeights w = {in[1], in[2], in[3], in[4]};
          if (all) w.adapters[0] = MakeAdapter(in[5], in[6]);
          w.adapters[1] = MakeAdapter(in[7], in[8]);
          w.adapters[2] = MakeAdapter(in[9], in[10]);
          // Every input has a gradient.
          return GatedMlp(in[0], w, Options()) +
                 (in[5].sum() + in[6].sum()) * 0.0;
        },
        [&](const Tensors& in) {
          const at::Tensor n = PlainNorm(in[0], in[1]);
          const at::Tensor gate =
              all ? Plain(n, in[2], in[5], in[6])
                  : n.mm(in[2].t()) + (in[5].sum() + in[6].sum()) * 0.0;
          return in[0] + Plain(at::silu(gate) * Plain(n, in[3], in[7], in[8]),
                               in[4], in[9], in[10]);
        },
        {Wave({5, 6}), Wave({6}), Wave({9, 6}), Wave({9, 6}), Wave({6, 9}),
         Wave({2, 6}), Wave({9, 2}), Wave({2, 6}), Wave({9, 2}), Wave({2, 9}),
         Wave({6, 2})});
  }
}

// m / |W + scale B A| of rows, as a constant, times W + scale B A, of x.
at::Tensor PlainDora(const at::Tensor& x, const at::Tensor& w,
                     const at::Tensor& a, const at::Tensor& b,
                     const at::Tensor& m) {
  const at::Tensor whole = w + kScale * b.mm(a);
  const at::Tensor norms = whole.detach().square().sum(1).sqrt();
  return x.mm(whole.t()) * (m / norms);
}

// The output of `layer` and the gradients of its inputs, of a loss whose
// gradient is the cosine of the output.
Tensors WithGradients(const std::function<at::Tensor(const Tensors&)>& layer,
                      const Tensors& inputs, at::ScalarType dtype) {
  Tensors leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i].to(dtype).detach().clone());
    leaves.back().requires_grad_(i != kFrozen);
  }
  const at::Tensor out = layer(leaves);
  out.backward(out.detach().cos());
  Tensors results = {out.detach()};
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (i != kFrozen) results.push_back(leaves[i].grad());
  }
  return results;
}

Adapter MakeDora(const at::Tensor& a, const at::Tensor& b,
                 const at::Tensor& m) {
  Adapter adapter = MakeAdapter(a, b);
  adapter.magnitude = m;
  return adapter;
}

// x, W, the residual, A, B and m; with it, a bias.
TEST(AdapterTest, DoraIsItsFormula) {
  const Tensors inputs = {Wave({5, 64}), Wave({3, 64}), Wave({5, 3}),
                          Wave({2, 64}), Wave({3, 2}),  Wave({3}) + 2.0,
                          Wave({3}, 0.5)};
  const auto plain = [&](const Tensors& in) {
    return in[2] + PlainDora(in[0], in[1], in[3], in[4], in[5]) + in[6];
  };
  const Tensors wanted = WithGradients(plain, inputs, at::kDouble);
  const auto ours = [&](const Weight& weight, const Tensors& in) {
    TransformerBlockWeights w;
    w.output = weight;
    w.output_bias = in[6];
    w.output_adapter = MakeDora(in[3], in[4], in[5]);
    return AttentionOutput(in[0], in[2], w, Options());
  };
  for (const auto& [dtype, bound] :
       {std::make_pair(at::kFloat, 4e-6), {at::kBFloat16, 0.08}}) {
    const Tensors got = WithGradients(
        [&](const Tensors& in) { return ours(in[1], in); }, inputs, dtype);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LT(Difference(got[i], wanted[i]), bound)
          << dtype << " result " << i;
    }
  }
  // Packed: as with the values that it decodes to.
  const at::Tensor dense = inputs[kFrozen].to(at::kFloat).contiguous();
  const Nf4Layout layout(dense.numel(), /*double_quantised=*/false);
  const at::Tensor bytes = at::empty({layout.bytes}, at::kByte);
  PackNf4(dense.const_data_ptr<float>(), layout,
          bytes.mutable_data_ptr<uint8_t>());
  const Weight packed(bytes, WeightFormat::kNf4, dense.size(0), dense.size(1));
  Tensors decoded = inputs;
  decoded[kFrozen] = Dequantize(packed, at::kFloat).to(at::kDouble);
  const Tensors of_decoded = WithGradients(plain, decoded, at::kDouble);
  const Tensors got = WithGradients(
      [&](const Tensors& in) { return ours(packed, in); }, inputs, at::kFloat);
  for (size_t i = 0; i < of_decoded.size(); ++i) {
    EXPECT_LT(Difference(got[i], of_decoded[i]), 4e-6) << "packed " << i;
  }
}

// Norms of large matrices are made in pieces.
TEST(AdapterTest, NormsOfPieces) {
  const at::Tensor w = Wave({4100, 1100}, 0.3).to(at::kFloat);
  const at::Tensor a = Wave({2, 1100}, 0.1).to(at::kFloat);
  const at::Tensor b = Wave({4100, 2}).to(at::kFloat);
  ASSERT_LT(PlanAdaptedNorms(4100, 1100), 4 * w.numel());
  const at::Tensor norms = AdaptedNorms(w, MakeDora(a, b, at::ones({4100})));
  const at::Tensor whole =
      w.to(at::kDouble) + kScale * b.to(at::kDouble).mm(a.to(at::kDouble));
  const at::Tensor wanted = whole.square().sum(1).sqrt();
  EXPECT_LT(((norms - wanted) / wanted).abs().max().item<double>(), 1e-6);
}

// As in pruned matrices: 0 / 0 isn't its factor.
TEST(AdapterTest, ARowOfZerosStaysOne) {
  const at::Tensor w = Wave({3, 4}, 0.3).to(at::kFloat);
  w[1].zero_();
  Adapter adapter = MakeDora(Wave({2, 4}).to(at::kFloat), at::zeros({3, 2}),
                             at::norm(w, 2, {1}, /*keepdim=*/false));
  adapter.norms = AdaptedNorms(w, adapter);
  const at::Tensor factor = adapter.factor();
  EXPECT_EQ(factor[1].item<float>(), 0.0F);
  EXPECT_NEAR(factor[0].item<float>(), 1.0F, 1e-6F);
}

// A block with adapters of all matrices but those in `without`.
class Block {
 public:
  static constexpr int64_t kHidden = 12, kInner = 20, kHeads = 3, kHeadDim = 4;
  static constexpr int64_t kBatch = 2, kLength = 5, kRank = 2;

  explicit Block(std::vector<int> without, bool dora = false)
      : without_(std::move(without)) {
    const int64_t q = kHeads * kHeadDim, kv = kHeadDim;
    const int64_t shapes[7][2] = {
        {q, kHidden},      {kv, kHidden},     {kv, kHidden},    {kHidden, q},
        {kInner, kHidden}, {kInner, kHidden}, {kHidden, kInner}};
    x_ = Leaf({kBatch * kLength, kHidden});
    for (at::Tensor& norm : norms_) norm = Wave({kHidden}).to(at::kFloat);
    for (int i = 0; i < 7; ++i) {
      matrices_[i] = Wave({shapes[i][0], shapes[i][1]}, 0.4).to(at::kFloat);
      a_[i] = Leaf({kRank, shapes[i][1]});
      b_[i] = Leaf({shapes[i][0], kRank});
      if (dora) {
        m_[i] = (Wave({shapes[i][0]}, 0.3) + 1.0).to(at::kFloat);
        m_[i].requires_grad_(true);
      }
    }
    options_.shape = {kBatch, kHeads, 1, kHeadDim};
    options_.eps = kEps;
    options_.rope_table = RopeTable(kLength, kHeadDim, 100.0);
  }

  void SetDropout(double rate) {
    rate_ = rate;
    samples_ = at::tensor({17, 4}, at::kLong);
  }
  TransformerBlockOptions& options() { return options_; }

  // The output, and the gradients of x and of the adapters.
  Tensors Run(bool fused) {
    const auto adapter = [&](int i) {
      Adapter made;
      if (std::count(without_.begin(), without_.end(), i) > 0) return made;
      made = MakeDora(a_[i], b_[i], m_[i]);
      made.dropout = {rate_, RandomKey(1, std::to_string(i)), samples_};
      return made;
    };
    TransformerBlockWeights w;
    w.attention = {norms_[0],
                   matrices_[0],
                   matrices_[1],
                   matrices_[2],
                   {adapter(0), adapter(1), adapter(2)}};
    w.output = matrices_[3];
    w.output_adapter = adapter(3);
    w.mlp = {norms_[1],
             matrices_[4],
             matrices_[5],
             matrices_[6],
             {adapter(4), adapter(5), adapter(6)}};
    const at::Tensor out = fused ? FusedTransformerBlock(x_, w, options_)
                                 : PlainTransformerBlock(x_, w, options_);
    out.backward(out.detach().cos());
    Tensors results = {out.detach()};
    const auto take = [&](at::Tensor& leaf) {
      results.push_back(leaf.grad().defined() ? leaf.grad().clone()
                                              : at::zeros({}));
      leaf.mutable_grad().reset();
    };
    take(x_);
    for (int i = 0; i < 7; ++i) {
      take(a_[i]);
      take(b_[i]);
      if (m_[i].defined()) take(m_[i]);
      EXPECT_FALSE(matrices_[i].grad().defined());
    }
    return results;
  }

  at::Tensor& matrix(int i) { return matrices_[i]; }
  // What the adapter adds to it.
  at::Tensor Product(int i) const {
    return b_[i].detach().mm(a_[i].detach()) * kScale;
  }
  // m / |W + what the adapter adds|: [out].
  at::Tensor Factor(int i) const {
    return m_[i].detach() / (matrices_[i] + Product(i)).square().sum(1).sqrt();
  }
  void DropAdapters() { without_ = {0, 1, 2, 3, 4, 5, 6}; }

 private:
  static at::Tensor Leaf(at::IntArrayRef shape) {
    return Wave(shape, 0.5).to(at::kFloat).requires_grad_(true);
  }

  std::vector<int> without_;
  at::Tensor x_, norms_[2], matrices_[7], a_[7], b_[7], m_[7];
  TransformerBlockOptions options_;
  double rate_ = 0.0;
  at::Tensor samples_;
};

void ExpectClose(const Tensors& got, const Tensors& wanted, double bound) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_LT(Difference(got[i], wanted[i].to(at::kDouble)), bound)
        << "result " << i;
  }
}

TEST(AdapterTest, FusedBlockEqualsThePlainOne) {
  for (const std::vector<int>& without :
       {std::vector<int>{}, {0, 3, 5}, {1, 2, 4, 6}}) {
    for (const double rate : {0.0, 0.4}) {
      for (const int kind : {0, 1, 2}) {
        Block block(without, /*dora=*/kind == 2);
        if (rate > 0.0) block.SetDropout(rate);
        if (kind == 1) {  // packed rows
          const at::Tensor positions =
              at::tensor({0, 1, 0, 1, 2, 0, 0, 1, 2, 3}, at::kLong);
          block.options().packing =
              c10::make_intrusive<PackedRows>(positions.view({2, 5}));
          block.options().rope_table =
              block.options().rope_table.index_select(0, positions);
        }
        ExpectClose(block.Run(true), block.Run(false), 2e-6);
      }
    }
  }
}

TEST(AdapterTest, BlockEqualsTheOneWithMergedWeights) {
  Block block({});
  const Tensors with = block.Run(true);
  for (int i = 0; i < 7; ++i) block.matrix(i).add_(block.Product(i));
  block.DropAdapters();
  const Tensors merged = block.Run(true);
  for (int i : {0, 1}) {  // the output, and the gradient of x
    EXPECT_LT(Difference(with[i], merged[i].to(at::kDouble)), 2e-6);
  }
}

TEST(AdapterTest, DoraBlockEqualsTheOneWithMergedWeights) {
  Block block({}, /*dora=*/true);
  const Tensors with = block.Run(true);
  for (int i = 0; i < 7; ++i) {
    const at::Tensor factor = block.Factor(i).unsqueeze(1);
    block.matrix(i).add_(block.Product(i)).mul_(factor);
  }
  block.DropAdapters();
  const Tensors merged = block.Run(true);
  for (int i : {0, 1}) {  // the output, and the gradient of x
    EXPECT_LT(Difference(with[i], merged[i].to(at::kDouble)), 4e-6);
  }
}

// With an identity as adapter, the sum is the input after dropout.
at::Tensor Left(const at::Tensor& x, const AdapterDropout& dropout) {
  const at::Tensor identity = at::eye(x.size(1), x.options());
  Adapter adapter = {identity, identity, 1.0, dropout};
  at::Tensor y = at::zeros(x.sizes(), x.options());
  AddAdapter(adapter, x, y);
  return y;
}

TEST(AdapterTest, DropoutDependsOnSampleAndPlaceAlone) {
  constexpr int64_t kSamples = 3, kLength = 5, kWidth = 13;
  const at::Tensor x = at::ones({kSamples * kLength, kWidth});
  AdapterDropout dropout = {0.3, RandomKey(0, "q"),
                            at::tensor({8, 2, 5}, at::kLong)};
  const at::Tensor all = Left(x, dropout).view({kSamples, kLength, kWidth});
  EXPECT_TRUE(at::equal(Left(x, dropout).view(all.sizes()), all));
  dropout.samples = at::tensor({2, 8}, at::kLong);
  const at::Tensor two =
      Left(x.narrow(0, 0, 2 * kLength), dropout).view({2, kLength, kWidth});
  EXPECT_TRUE(at::equal(two[0], all[1]));
  EXPECT_TRUE(at::equal(two[1], all[0]));
  EXPECT_FALSE(at::equal(all[1], all[0]));
  // A shorter batch: the same tokens, less padding.
  const at::Tensor shorter = Left(x.narrow(0, 0, 6), dropout).view({2, 3, -1});
  EXPECT_TRUE(at::equal(shorter[1], all[0].narrow(0, 0, 3)));
  dropout.key = RandomKey(1, "q");
  const at::Tensor other =
      Left(x.narrow(0, 0, 2 * kLength), dropout).view({2, kLength, kWidth});
  EXPECT_FALSE(at::equal(other, two));
  dropout.samples = at::Tensor();
  EXPECT_TRUE(at::equal(Left(x, dropout), x));
}

TEST(AdapterTest, DropoutKeepsTheMean) {
  const at::Tensor x = at::ones({4000, 33});
  const AdapterDropout dropout = {0.25, RandomKey(0, "k"),
                                  at::arange(4000).to(at::kLong)};
  const at::Tensor left = Left(x, dropout);
  const at::Tensor kept = left.ne(0);
  EXPECT_TRUE(left.masked_select(kept)
                  .eq(static_cast<float>(1.0 / 0.75))
                  .all()
                  .item<bool>());
  const double share = kept.to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(share, 0.75, 4 * std::sqrt(0.25 * 0.75 / (4000 * 33)));
  // No channel is special.
  const at::Tensor by_channel = kept.to(at::kDouble).mean(0);
  EXPECT_LT((by_channel - 0.75).abs().max().item<double>(), 0.035);
}

TEST(DropoutMaskTest, ARowsPartsHaveItsDraws) {
  // Two samples of eight rows, of which a rank has rows 0, 1, 6 and 7.
  AdapterDropout dropout = {0.5, 7, at::tensor({3, 11}, at::kLong)};
  const at::Tensor whole = DropoutMask(dropout, 16, 10).view({2, 8, 10});
  dropout.positions = {0, 4};
  const at::Tensor parts = DropoutMask(dropout, 8, 10).view({2, 4, 10});
  EXPECT_TRUE(parts.narrow(1, 0, 2).equal(whole.narrow(1, 0, 2)));
  EXPECT_TRUE(parts.narrow(1, 2, 2).equal(whole.narrow(1, 6, 2)));
  // And rows 2 to 5.
  dropout.positions = {2, 0};
  EXPECT_TRUE(DropoutMask(dropout, 8, 10)
                  .view({2, 4, 10})
                  .equal(whole.narrow(1, 2, 4)));
}

}  // namespace
}  // namespace capstan::kernels
