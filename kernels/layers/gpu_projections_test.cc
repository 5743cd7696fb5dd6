// SPDX-License-Identifier: Apache-2.0
//
// Queries, keys and values as one product where there are norms or biases, and
// the gradients of norms and biases in a strategy's float32 sums, as on GPUs.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/context/wide_gradient_sink.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/gpu_path_for_test.h"
#include "kernels/layers/product_count_for_test.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kBatch = 2, kLength = 5, kRows = kBatch * kLength;
constexpr int64_t kHidden = 16, kHeads = 4, kKvHeads = 2, kHeadDim = 8;
constexpr int64_t kQuery = kHeads * kHeadDim, kKey = kKvHeads * kHeadDim;

enum Input { kX, kNorm, kQ, kK, kV, kQNorm, kKNorm, kQBias, kKBias, kVBias };

// What a layer's queries and keys go through.
struct Kind {
  std::string name;
  QueryKeyNorm norm = QueryKeyNorm::kNone;
  bool biases = false;
  bool rope = true;
};
const std::vector<Kind>& Kinds() {
  static const auto* const kinds = new std::vector<Kind>{
      {"norms of heads", QueryKeyNorm::kHead},
      {"norms of rows", QueryKeyNorm::kRow},
      {"biases", QueryKeyNorm::kNone, true},
      {"biases and norms", QueryKeyNorm::kHead, true},
      {"no rope", QueryKeyNorm::kNone, false, false},
      {"norms without rope", QueryKeyNorm::kHead, false, false}};
  return *kinds;
}

at::Tensor Normal(at::IntArrayRef shape, double size) {
  return at::randn(shape, at::kDouble).mul_(size);
}

Tensors Inputs(const Kind& kind) {
  at::manual_seed(11);
  const bool row = kind.norm == QueryKeyNorm::kRow;
  return {Normal({kRows, kHidden}, 1.0),
          Normal({kHidden}, 0.3) + 1.0,
          Normal({kQuery, kHidden}, 0.2),
          Normal({kKey, kHidden}, 0.2),
          Normal({kKey, kHidden}, 0.3),
          Normal({row ? kQuery : kHeadDim}, 0.3) + 1.0,
          Normal({row ? kKey : kHeadDim}, 0.3) + 1.0,
          Normal({kQuery}, 0.3),
          Normal({kKey}, 0.3),
          Normal({kKey}, 0.3)};
}

// How a model lists them on GPUs, and where biases stand behind their matrices.
const std::vector<int> kTogether = {kNorm,  kQ,     kK,     kV,    kQBias,
                                    kKBias, kVBias, kQNorm, kKNorm};
const std::vector<int> kBiasesBetween = {kNorm, kQ,     kQBias, kK,    kKBias,
                                         kV,    kVBias, kQNorm, kKNorm};

// One after another in memory in backward order, as strategies lay them out.
void LayOut(Tensors* in, const std::vector<int>& order) {
  Tensors flat;
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    flat.push_back((*in)[*i].reshape({-1}));
  }
  const at::Tensor all = at::cat(flat);
  int64_t at = 0;
  for (auto i = order.rbegin(); i != order.rend(); ++i) {
    at::Tensor& t = (*in)[*i];
    t = all.narrow(0, at, t.numel()).view(t.sizes());
    at += t.numel();
  }
}

TransformerBlockOptions Options(const Kind& kind) {
  TransformerBlockOptions options;
  options.shape = {kBatch, kHeads, kKvHeads, kHeadDim};
  options.eps = kEps;
  if (kind.rope) options.rope_table = RopeTable(kLength, kHeadDim, 100.0);
  options.parameters = {kQ, kK, kV, -1, -1, -1, -1};
  options.bias_parameters = {kQBias, kKBias, kVBias, -1, -1, -1, -1};
  options.norm_parameters = {kNorm, kQNorm, kKNorm, -1, -1, -1};
  return options;
}

at::Tensor Project(const Tensors& in, const Kind& kind,
                   const TransformerBlockOptions& options) {
  AttentionWeights w = {in[kNorm], in[kQ], in[kK], in[kV]};
  if (kind.norm != QueryKeyNorm::kNone) {
    w.q_norm = in[kQNorm];
    w.k_norm = in[kKNorm];
  }
  if (kind.biases) {
    w.q_bias = in[kQBias];
    w.k_bias = in[kKBias];
    w.v_bias = in[kVBias];
  }
  const QueryKeyValue made = AttentionInput(in[kX], w, options);
  return at::cat({made.q, made.k, made.v, made.x}, 1);
}

// The same by its formulas.
at::Tensor Plain(const Tensors& in, const Kind& kind) {
  const at::Tensor n = PlainNorm(in[kX], in[kNorm]);
  const int64_t half = kHeadDim / 2;
  const at::Tensor table =
      RopeTable(kLength, kHeadDim, 100.0).to(in[kX].scalar_type());
  const at::Tensor c = table.narrow(1, 0, half).repeat({kBatch, 1}),
                   s = table.narrow(1, half, half).repeat({kBatch, 1});
  const auto part = [&](Input matrix, Input bias, Input norm) {
    at::Tensor y = n.mm(in[matrix].t());
    if (kind.biases) y = y + in[bias];
    if (matrix == kV) return y;
    if (kind.norm != QueryKeyNorm::kNone) {
      y = PlainNorm(y.view({-1, in[norm].size(0)}), in[norm]).view(y.sizes());
    }
    if (!kind.rope) return y;
    const at::Tensor heads = y.view({kRows, -1, kHeadDim});
    const at::Tensor a = heads.narrow(2, 0, half),
                     b = heads.narrow(2, half, half);
    const at::Tensor c1 = c.unsqueeze(1), s1 = s.unsqueeze(1);
    return at::cat({a * c1 - b * s1, b * c1 + a * s1}, 2).view(y.sizes());
  };
  return at::cat({part(kQ, kQBias, kQNorm), part(kK, kKBias, kKNorm),
                  part(kV, kVBias, kNorm), in[kX]},
                 1);
}

TEST(GpuProjectionsTest, MatchDoublePrecision) {
  const GpuPathForTest gpu;
  const std::pair<at::ScalarType, double> kTypes[] = {
      {at::kFloat, 1e-5}, {at::kBFloat16, 0.06}, {at::kHalf, 0.01}};
  for (const Kind& kind : Kinds()) {
    for (const auto& order : {kTogether, kBiasesBetween, std::vector<int>()}) {
      for (const auto& [type, bound] : kTypes) {
        SCOPED_TRACE(kind.name + ", " + c10::toString(type));
        Tensors rounded;
        for (const at::Tensor& t : Inputs(kind)) {
          rounded.push_back(t.to(type).to(at::kDouble));
        }
        const Tensors wanted = RunBoth(
            [&](const Tensors& in) {
              // Those without a part in it have a gradient of 0.
              at::Tensor y = Plain(in, kind);
              for (const at::Tensor& t : in) y = y + t.sum() * 0.0;
              return y;
            },
            rounded, at::kDouble);
        const Tensors got = RunBoth(
            [&](const Tensors& in) {
              Tensors laid = in;
              if (!order.empty()) LayOut(&laid, order);
              at::Tensor y = Project(laid, kind, Options(kind));
              for (const at::Tensor& t : in) y = y + t.sum() * 0.0;
              return y;
            },
            rounded, type);
        ASSERT_EQ(got.size(), wanted.size());
        for (size_t i = 0; i < wanted.size(); ++i) {
          EXPECT_LT(Difference(got[i], wanted[i]), bound) << "result " << i;
        }
      }
    }
  }
}

TEST(GpuProjectionsTest, AreOneProduct) {
  const GpuPathForTest gpu;
  for (const Kind& kind : Kinds()) {
    SCOPED_TRACE(kind.name);
    Tensors in = Inputs(kind);
    for (at::Tensor& t : in) t = t.to(at::kBFloat16);
    Tensors apart = in;
    LayOut(&apart, kBiasesBetween);
    LayOut(&in, kTogether);
    const ProductCount count;
    Project(in, kind, Options(kind));
    EXPECT_EQ(count.count(), 1);
    Project(apart, kind, Options(kind));
    EXPECT_EQ(count.count(), 1 + 3);
  }
}

// A strategy's float32 sums, laid out as its parameters.
class Sums final : public GradientSink, public WideGradientSink {
 public:
  Sums(const Tensors& in, const std::vector<int>& order)
      : wide_(in[0].scalar_type() != at::kFloat) {
    views_ = in;
    for (const int i : order) {
      views_[i] = at::full(in[i].sizes(), 77.0, at::kFloat);
    }
    LayOut(&views_, order);
  }
  Place Open(int parameter) override {
    return wide_ ? Place() : Next(parameter);
  }
  Place OpenWide(int parameter) override {
    return wide_ ? Next(parameter) : Place();
  }
  const at::Tensor& sum(int parameter) const { return views_[parameter]; }
  int written(int parameter) { return written_[parameter]; }

 private:
  Place Next(int parameter) {
    return {views_.at(parameter).variable_data(), written_[parameter]++ > 0};
  }

  const bool wide_;
  Tensors views_;
  std::map<int, int> written_;
};

TEST(GpuProjectionsTest, AllGradientsAreWrittenIntoFloat32Sums) {
  const GpuPathForTest gpu;
  const std::pair<at::ScalarType, double> kTypes[] = {
      {at::kFloat, 1e-5}, {at::kBFloat16, 4e-2}, {at::kHalf, 4e-3}};
  for (const Kind& kind : Kinds()) {
    for (const bool together : {true, false}) {
      const std::vector<int>& order = together ? kTogether : kBiasesBetween;
      for (const auto& [type, bound] : kTypes) {
        SCOPED_TRACE(kind.name + ", " + c10::toString(type));
        Tensors in = Inputs(kind), exact;
        for (at::Tensor& t : in) t = t.to(type);
        LayOut(&in, order);
        for (at::Tensor& t : in) {
          exact.push_back(t.to(at::kDouble).set_requires_grad(true));
          t = t.detach().set_requires_grad(true);
        }
        Sums sums(in, order);
        TransformerBlockOptions options = Options(kind);
        options.sink = &sums;
        for (int pass = 0; pass < 2; ++pass) {
          const at::Tensor wanted = Plain(exact, kind);
          const at::Tensor d = Normal(wanted.sizes(), 1.0 + pass).to(type);
          const at::Tensor out = Project(in, kind, options);
          const ProductCount count;
          torch::autograd::backward({out}, {d});
          // To x, and of the matrices; float32's are our own on the CPU.
          if (type != at::kFloat) {
            EXPECT_EQ(count.count(), together ? 2 : 6);
          }
          torch::autograd::backward({wanted}, {d.to(at::kDouble)});
          for (at::Tensor& t : in) {
            if (!t.is_same(in[kX])) t.mutable_grad().reset();
          }
        }
        for (const int i : order) {
          const bool used = exact[i].grad().defined();
          EXPECT_EQ(sums.written(i), used ? 2 : 0) << i;
          if (used) {
            EXPECT_LT(Difference(sums.sum(i), exact[i].grad()), bound) << i;
          }
        }
        EXPECT_LT(Difference(in[kX].grad(), exact[kX].grad()), bound);
      }
    }
  }
}

// A norm's and a bias's gradient isn't rounded to 16 bits on its way.
TEST(GpuProjectionsTest, GradientsOfVectorsStayFloat32) {
  const GpuPathForTest gpu;
  at::manual_seed(3);
  const at::Tensor x = Normal({50, 24}, 1.0).to(at::kBFloat16);
  const at::Tensor weight = (Normal({24}, 0.3) + 1.0).to(at::kBFloat16);
  const at::Tensor d = Normal({50, 24}, 1.0).to(at::kBFloat16);
  Tensors in = {x, weight.clone().set_requires_grad(true)};
  Sums sums(in, {1});
  for (int pass = 0; pass < 2; ++pass) {
    torch::autograd::backward({RmsNorm(in[0], in[1], kEps, false, {&sums, 1})},
                              {d});
    EXPECT_FALSE(in[1].grad().defined());
  }
  const at::Tensor xd = x.to(at::kDouble);
  const at::Tensor wanted =
      (d.to(at::kDouble) * PlainNorm(xd, at::ones({24}, at::kDouble))).sum({0});
  EXPECT_LT(Difference(sums.sum(1), wanted * 2.0), 1e-6);
  EXPECT_GT(Difference(wanted.to(at::kBFloat16), wanted), 1e-4);
  const at::Tensor bias = at::full({24}, 1.0, at::kFloat);
  SumRowsInto(bias, d, /*add=*/false);
  EXPECT_LT(Difference(bias, d.to(at::kDouble).sum({0})), 1e-6);
  SumRowsInto(bias, d, /*add=*/true);
  EXPECT_LT(Difference(bias, d.to(at::kDouble).sum({0}) * 2.0), 1e-6);
}

}  // namespace
}  // namespace capstan::kernels
