// SPDX-License-Identifier: Apache-2.0
//
// What blocks do on GPUs, on the CPU: layers as one product, residuals added
// by norms, and gradients written into a strategy's float32 sums.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/context/wide_gradient_sink.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/gpu_path_for_test.h"
#include "kernels/layers/joined_linear.h"
#include "kernels/layers/product_count_for_test.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/plain_products_for_test.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kBatch = 2, kLength = 5, kHidden = 16, kInner = 24;
constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 8;

// The inputs of a block.
enum Input { kX, kNorm, kQ, kK, kV, kOut, kNorm2, kGate, kUp, kDown, kInputs };

at::Tensor Normal(at::IntArrayRef shape, double size) {
  return at::randn(shape, at::kDouble).mul_(size);
}

Tensors Inputs() {
  at::manual_seed(7);
  const int64_t q = kHeads * kHeadDim, kv = kKvHeads * kHeadDim;
  return {Normal({kBatch * kLength, kHidden}, 1.0),
          Normal({kHidden}, 0.3) + 1.0,
          Normal({q, kHidden}, 0.2),
          Normal({kv, kHidden}, 0.2),
          Normal({kv, kHidden}, 0.3),
          Normal({kHidden, q}, 0.2),
          Normal({kHidden}, 0.3) + 1.0,
          Normal({kInner, kHidden}, 0.2),
          Normal({kInner, kHidden}, 0.2),
          Normal({kHidden, kInner}, 0.2)};
}

TransformerBlockOptions Options() {
  TransformerBlockOptions options;
  options.shape = {kBatch, kHeads, kKvHeads, kHeadDim};
  options.eps = kEps;
  options.rope_table = RopeTable(kLength, kHeadDim, 100.0);
  options.parameters = {0, 1, 2, 3, 4, 5, 6};
  return options;
}

// The matrices of `parts`, one after another in memory, in that order.
void LayOut(Tensors* in, const std::vector<int>& parts) {
  Tensors flat;
  for (const int i : parts) flat.push_back((*in)[i].reshape({-1}));
  const at::Tensor all = at::cat(flat);
  int64_t at = 0;
  for (const int i : parts) {
    at::Tensor& t = (*in)[i];
    t = all.narrow(0, at, t.numel()).view(t.sizes());
    at += t.numel();
  }
}

at::Tensor Block(const Tensors& in, const TransformerBlockOptions& options) {
  const TransformerBlockWeights weights = {
      {in[kNorm], in[kQ], in[kK], in[kV]},
      in[kOut],
      {in[kNorm2], in[kGate], in[kUp], in[kDown]}};
  return PlainTransformerBlock(in[kX], weights, options);
}

// The same by its formulas.
at::Tensor PlainBlock(const Tensors& in) {
  const at::Tensor table =
      RopeTable(kLength, kHeadDim, 100.0).to(in[kX].scalar_type());
  const int64_t half = kHeadDim / 2;
  const at::Tensor c = table.narrow(1, 0, half),
                   s = table.narrow(1, half, half);
  const auto heads = [&](const at::Tensor& x) {
    return x.view({kBatch, kLength, -1, kHeadDim}).transpose(1, 2);
  };
  const auto rope = [&](const at::Tensor& x) {
    const at::Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
    return at::cat({a * c - b * s, b * c + a * s}, 3);
  };
  const at::Tensor n = PlainNorm(in[kX], in[kNorm]);
  const int64_t group = kHeads / kKvHeads;
  const at::Tensor q = rope(heads(n.mm(in[kQ].t())));
  const at::Tensor k =
      rope(heads(n.mm(in[kK].t()))).repeat_interleave(group, 1);
  const at::Tensor v = heads(n.mm(in[kV].t())).repeat_interleave(group, 1);
  const at::Tensor mask = at::ones({kLength, kLength}, at::kBool).triu(1);
  const at::Tensor p =
      (q.matmul(k.transpose(2, 3)) / std::sqrt(double(kHeadDim)))
          .masked_fill(mask, -1e30)
          .softmax(-1);
  const at::Tensor mixed =
      p.matmul(v).transpose(1, 2).reshape({kBatch * kLength, -1});
  const at::Tensor y = in[kX] + mixed.mm(in[kOut].t());
  const at::Tensor m = PlainNorm(y, in[kNorm2]);
  return y +
         (at::silu(m.mm(in[kGate].t())) * m.mm(in[kUp].t())).mm(in[kDown].t());
}

// Values and gradients of a whole block in each dtype, against float64 on the
// same numbers: a dozen roundings after each other.
void ExpectBlock(const Operator& block, const Operator& plain,
                 const Tensors& inputs) {
  const struct {
    at::ScalarType type;
    double bound;
  } kTypes[] = {{at::kFloat, 1e-5}, {at::kBFloat16, 0.06}, {at::kHalf, 0.01}};
  for (const auto& [type, bound] : kTypes) {
    SCOPED_TRACE(c10::toString(type));
    Tensors rounded;
    for (const at::Tensor& t : inputs) {
      rounded.push_back(t.to(type).to(at::kDouble));
    }
    const Tensors wanted = RunBoth(plain, rounded, at::kDouble);
    const Tensors got = RunBoth(block, rounded, type);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_LT(Difference(got[i], wanted[i]), bound) << "result " << i;
    }
  }
}

TEST(GpuPathTest, ABlockWithJoinedLayersMatchesDoublePrecision) {
  const GpuPathForTest gpu;
  // As strategies lay out, as files do, and apart from each other.
  for (const auto& order : std::vector<std::vector<std::vector<int>>>{
           {{kDown, kUp, kGate, kOut, kV, kK, kQ}},
           {{kQ, kK, kV, kOut, kGate, kUp, kDown}},
           {{kK, kQ, kV}, {kGate, kUp}},
           {{kK, kV, kQ}, {kGate, kOut, kUp}},
           {}}) {
    for (const bool again : {false, true}) {
      const RecomputingMlp recomputing(again);
      ExpectBlock(
          [&](const Tensors& in) {
            Tensors laid = in;
            for (const auto& parts : order) LayOut(&laid, parts);
            return Block(laid, Options());
          },
          PlainBlock, Inputs());
    }
  }
}

TEST(GpuPathTest, JoinedLayersAreOneProduct) {
  const GpuPathForTest gpu;
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    Tensors apart = Inputs();
    for (at::Tensor& t : apart) t = t.to(type);
    Tensors joined = apart;
    LayOut(&joined, {kDown, kUp, kGate, kOut, kV, kK, kQ});
    const ProductCount count;
    const at::Tensor one = Block(joined, Options());
    EXPECT_EQ(count.count(), 4);
    const at::Tensor each = Block(apart, Options());
    EXPECT_EQ(count.count(), 4 + 7);
    EXPECT_LT(Difference(one, each.to(at::kDouble)), 1e-2);
  }
}

TEST(JoinMatricesTest, OnlyWhatFollowsOneAnother) {
  const at::Tensor flat = at::arange(100, at::kFloat);
  const auto matrix = [&](int64_t begin, int64_t rows) {
    return flat.narrow(0, begin, rows * 4).view({rows, 4});
  };
  std::vector<int64_t> first;
  const at::Tensor all =
      JoinMatrices({matrix(24, 2), matrix(8, 4), matrix(32, 3)}, &first);
  ASSERT_TRUE(all.defined());
  EXPECT_TRUE(at::equal(all, matrix(8, 9)));
  EXPECT_EQ(all.const_data_ptr(), matrix(8, 1).const_data_ptr());
  EXPECT_EQ(first, std::vector<int64_t>({4, 0, 6}));
  // A gap, an overlap, another storage, another width, nothing.
  EXPECT_FALSE(JoinMatrices({matrix(0, 2), matrix(12, 2)}, &first).defined());
  EXPECT_FALSE(JoinMatrices({matrix(0, 2), matrix(4, 2)}, &first).defined());
  EXPECT_FALSE(
      JoinMatrices({matrix(0, 2), at::ones({2, 4})}, &first).defined());
  EXPECT_FALSE(
      JoinMatrices({matrix(0, 2), flat.narrow(0, 8, 6).view({2, 3})}, &first)
          .defined());
  EXPECT_FALSE(JoinMatrices({matrix(0, 2), at::Tensor()}, &first).defined());
}

// A strategy's float32 sums of the seven matrices, one after another.
class Sums final : public GradientSink, public WideGradientSink {
 public:
  explicit Sums(const Tensors& in) {
    int64_t numel = 0;
    for (const int i : {kDown, kUp, kGate, kOut, kV, kK, kQ}) {
      numel += in[i].numel();
    }
    flat_ = at::full({numel}, 77.0, at::kFloat);
    numel = 0;
    for (const auto& [parameter, input] :
         std::vector<std::pair<int, int>>{{6, kDown},
                                          {5, kUp},
                                          {4, kGate},
                                          {3, kOut},
                                          {2, kV},
                                          {1, kK},
                                          {0, kQ}}) {
      views_[parameter] =
          flat_.narrow(0, numel, in[input].numel()).view(in[input].sizes());
      numel += in[input].numel();
    }
  }
  Place Open(int) override { return {}; }
  Place OpenWide(int parameter) override {
    return {views_.at(parameter), written_[parameter]++ > 0};
  }
  const at::Tensor& view(int parameter) const { return views_.at(parameter); }
  int written(int parameter) { return written_[parameter]; }

 private:
  at::Tensor flat_;
  std::map<int, at::Tensor> views_;
  std::map<int, int> written_;
};

// Gradients of two passes, in sums and as autograd adds them.
TEST(GpuPathTest, GradientsAreWrittenIntoFloat32Sums) {
  const GpuPathForTest gpu;
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    for (const bool joined : {true, false}) {
      Tensors in = Inputs();
      for (at::Tensor& t : in) t = t.to(type);
      if (joined) LayOut(&in, {kDown, kUp, kGate, kOut, kV, kK, kQ});
      Tensors exact;
      for (at::Tensor& t : in) {
        exact.push_back(t.to(at::kDouble).set_requires_grad(true));
        t = t.detach().set_requires_grad(true);
      }
      Sums sums(in);
      TransformerBlockOptions options = Options();
      options.sink = &sums;
      for (int pass = 0; pass < 2; ++pass) {
        const at::Tensor d = Normal({kBatch * kLength, kHidden}, 1.0 + pass);
        const at::Tensor out = Block(in, options);
        const ProductCount count;
        torch::autograd::backward({out}, {d.to(type)});
        // To inputs, of weights.
        EXPECT_EQ(count.count(), joined ? 4 + 4 : 7 + 7);
        torch::autograd::backward({PlainBlock(exact)},
                                  {d.to(type).to(at::kDouble)});
      }
      const int inputs[] = {kQ, kK, kV, kOut, kGate, kUp, kDown};
      for (int p = 0; p < 7; ++p) {
        EXPECT_FALSE(in[inputs[p]].grad().defined()) << p;
        EXPECT_EQ(sums.written(p), 2);
        EXPECT_LT(Difference(sums.view(p), exact[inputs[p]].grad()),
                  type == at::kHalf ? 4e-3 : 4e-2)
            << p;
      }
      for (const int i : {kX, kNorm, kNorm2}) {
        EXPECT_LT(Difference(in[i].grad(), exact[i].grad()),
                  type == at::kHalf ? 4e-3 : 4e-2)
            << i;
      }
    }
  }
}

// One product's gradient isn't rounded on its way, where 16 bits would be.
TEST(GpuPathTest, TheProductItselfIsFloat32) {
  const GpuPathForTest gpu;
  const at::Tensor a = Normal({3, 50}, 1.0).to(at::kBFloat16);
  const at::Tensor b = Normal({50, 4}, 2.0).to(at::kBFloat16);
  const at::Tensor wanted = a.to(at::kDouble).mm(b.to(at::kDouble));
  const at::Tensor out = at::full({3, 4}, 99.0, at::kFloat);
  MatMulInto(out, a, b);
  EXPECT_LT(Difference(out, wanted), 1e-6);
  MatMulInto(out, a, b, /*beta=*/1.0, /*alpha=*/0.5);
  EXPECT_LT(Difference(out, wanted * 1.5), 1e-6);
  EXPECT_GT(Difference(MatMul(a, b), wanted), 1e-4);
}

TEST(GpuPathTest, OtherBlocksMatchDoublePrecision) {
  const GpuPathForTest gpu;
  // Adapters, which join, with a scale.
  Tensors in = Inputs();
  in.push_back(Normal({2, kHidden}, 0.5));
  in.push_back(Normal({kKvHeads * kHeadDim, 2}, 0.5));
  in.push_back(Normal({3, kHidden}, 0.5));
  in.push_back(Normal({kInner, 3}, 0.5));
  ExpectBlock(
      [](const Tensors& in) {
        Tensors laid = in;
        LayOut(&laid, {kV, kK, kQ});
        LayOut(&laid, {kUp, kGate});
        TransformerBlockWeights w = {
            {laid[kNorm], laid[kQ], laid[kK], laid[kV]},
            laid[kOut],
            {laid[kNorm2], laid[kGate], laid[kUp], laid[kDown]}};
        w.attention.adapters[1] = {laid[kInputs], laid[kInputs + 1], 0.7};
        w.mlp.adapters[1] = {laid[kInputs + 2], laid[kInputs + 3], 0.6};
        return PlainTransformerBlock(laid[kX], w, Options());
      },
      [](const Tensors& in) {
        Tensors merged(in.begin(), in.begin() + kInputs);
        merged[kK] = in[kK] + in[kInputs + 1].mm(in[kInputs]) * 0.7;
        merged[kUp] = in[kUp] + in[kInputs + 3].mm(in[kInputs + 2]) * 0.6;
        return PlainBlock(merged);
      },
      in);
  // All of one input, with and without the matrices joined, of several ranks.
  in = Inputs();
  const std::pair<int, int64_t> adapted[] = {
      {kQ, 2}, {kV, 3}, {kGate, 2}, {kUp, 1}};
  for (const auto& [matrix, rank] : adapted) {
    in.push_back(Normal({rank, kHidden}, 0.5));
    in.push_back(Normal({in[matrix].size(0), rank}, 0.5));
  }
  for (const bool joined : {true, false}) {
    for (const bool again : {false, true}) {
      const RecomputingMlp recomputing(again);
      ExpectBlock(
          [joined](const Tensors& in) {
            Tensors laid = in;
            if (joined) {
              LayOut(&laid, {kV, kK, kQ});
              LayOut(&laid, {kUp, kGate});
            }
            TransformerBlockWeights w = {
                {laid[kNorm], laid[kQ], laid[kK], laid[kV]},
                laid[kOut],
                {laid[kNorm2], laid[kGate], laid[kUp], laid[kDown]}};
            const auto adapter = [&](int i, double scale) {
              return Adapter{laid[kInputs + 2 * i], laid[kInputs + 2 * i + 1],
                             scale};
            };
            w.attention.adapters[0] = adapter(0, 0.7);
            w.attention.adapters[2] = adapter(1, 0.5);
            w.mlp.adapters[0] = adapter(2, 0.6);
            w.mlp.adapters[1] = adapter(3, 0.4);
            return PlainTransformerBlock(laid[kX], w, Options());
          },
          [](const Tensors& in) {
            Tensors merged(in.begin(), in.begin() + kInputs);
            const double scales[] = {0.7, 0.5, 0.6, 0.4};
            const int to[] = {kQ, kV, kGate, kUp};
            for (int i = 0; i < 4; ++i) {
              merged[to[i]] =
                  merged[to[i]] +
                  in[kInputs + 2 * i + 1].mm(in[kInputs + 2 * i]) * scales[i];
            }
            return PlainBlock(merged);
          },
          in);
    }
  }
  // q, k and v stored as one matrix, gate and up as another.
  ExpectBlock(
      [](const Tensors& in) {
        const TransformerBlockWeights w = {
            {in[kNorm], at::cat({in[kQ], in[kK], in[kV]}), {}, {}},
            in[kOut],
            {in[kNorm2], at::cat({in[kGate], in[kUp]}), {}, in[kDown]}};
        return PlainTransformerBlock(in[kX], w, Options());
      },
      PlainBlock, Inputs());
}

}  // namespace
}  // namespace capstan::kernels
