// SPDX-License-Identifier: Apache-2.0
//
// Blocks of the families of decoders, and others with all kinds of options:
// fused and plain, against the formulas in double precision.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/layer_cache.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kBatch = 2, kLength = 70, kHidden = 24, kInner = 40;
constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 8, kRank = 3;
constexpr int64_t kRows = kBatch * kLength;

struct Options {
  const char* name;
  bool input_norms = true, post_norms = false, plus_one = false;
  QueryKeyNorm qk_norm = QueryKeyNorm::kNone;
  bool attention_biases = false, mlp_biases = false, output_bias = false;
  bool stored_as_one = false;
  bool gelu = false;
  int64_t rotated = kHeadDim;  // channels; 0: no rope
  int64_t window = 0;
  double softcap = 0.0, scale = 0.0;
  bool adapters = false, packed = false, mlp = true;
};

std::vector<Options> AllOptions() {
  std::vector<Options> all;
  const auto add = [&](const char* name) -> Options& {
    all.push_back({name});
    return all.back();
  };
  add("llama");
  add("no_rope").rotated = 0;
  add("partial_rope").rotated = 4;
  add("mistral").window = 9;
  add("gelu").gelu = true;
  add("plus_one").plus_one = true;
  add("without_mlp").mlp = false;
  add("post_norms").post_norms = true;
  {
    Options& o = add("qwen2");
    o.attention_biases = true;
  }
  {
    Options& o = add("llama_biases");
    o.attention_biases = o.mlp_biases = o.output_bias = true;
  }
  add("qwen3").qk_norm = QueryKeyNorm::kHead;
  {
    Options& o = add("olmo2");
    o.qk_norm = QueryKeyNorm::kRow;
    o.input_norms = false;
    o.post_norms = true;
  }
  {
    Options& o = add("phi3");
    o.stored_as_one = true;
    o.rotated = 6;
    o.window = 33;
  }
  {
    Options& o = add("gemma2");
    o.post_norms = o.plus_one = o.gelu = true;
    o.window = 17;
    o.softcap = 5.0;
    o.scale = 0.3;
  }
  {
    Options& o = add("gemma3");
    o.post_norms = o.plus_one = o.gelu = true;
    o.qk_norm = QueryKeyNorm::kHead;
    o.scale = 0.3;
  }
  {
    Options& o = add("everything");
    o.post_norms = o.plus_one = o.gelu = o.attention_biases = o.mlp_biases =
        o.output_bias = o.stored_as_one = true;
    o.qk_norm = QueryKeyNorm::kHead;
    o.rotated = 4;
    o.window = 11;
    o.softcap = 3.0;
    o.scale = 0.4;
  }
  {
    Options& o = add("attention_with_post_norm_alone");
    o.post_norms = true;
    o.mlp = false;
    o.qk_norm = QueryKeyNorm::kRow;
  }
  // Each with adapters, and each packed.
  const size_t count = all.size();
  for (size_t i = 0; i < count; ++i) {
    all.push_back(all[i]);
    all.back().adapters = true;
    all.push_back(all[i]);
    all.back().packed = true;
  }
  return all;
}

using Named = std::map<std::string, at::Tensor>;

// All inputs, float64. Of names that the options don't have: none.
Named Inputs(const Options& o) {
  Named t;
  const auto norm = [&](const std::string& name, int64_t width, bool wanted) {
    if (wanted) t[name] = Wave({width}) * 0.4 + (o.plus_one ? 0.1 : 1.1);
  };
  const auto linear = [&](const std::string& name, int64_t out, int64_t in,
                          bool bias) {
    t[name] = Wave({out, in}, 0.25);
    if (bias) t[name + "_bias"] = Wave({out}, 0.2);
    if (!o.adapters) return;
    t[name + "_a"] = Wave({kRank, in}, 0.3);
    t[name + "_b"] = Wave({out, kRank}, 0.3);
  };
  const int64_t q = kHeads * kHeadDim, kv = kKvHeads * kHeadDim;
  // With much in common, so that attention's means aren't almost 0, of which
  // norms would enlarge the rounding.
  t["x"] = Wave({kRows, kHidden}) + Wave({kHidden}, 2.0);
  norm("norm", kHidden, o.input_norms);
  norm("attention_post_norm", kHidden, o.post_norms);
  const bool heads = o.qk_norm == QueryKeyNorm::kHead;
  norm("q_norm", heads ? kHeadDim : q, o.qk_norm != QueryKeyNorm::kNone);
  norm("k_norm", heads ? kHeadDim : kv, o.qk_norm != QueryKeyNorm::kNone);
  if (o.stored_as_one) {
    linear("q", q + 2 * kv, kHidden, o.attention_biases);
  } else {
    linear("q", q, kHidden, o.attention_biases);
    linear("k", kv, kHidden, o.attention_biases);
    linear("v", kv, kHidden, o.attention_biases);
  }
  linear("o", kHidden, q, o.output_bias);
  if (!o.mlp) return t;
  norm("mlp_norm", kHidden, o.input_norms);
  norm("mlp_post_norm", kHidden, o.post_norms);
  if (o.stored_as_one) {
    linear("gate", 2 * kInner, kHidden, o.mlp_biases);
  } else {
    linear("gate", kInner, kHidden, o.mlp_biases);
    linear("up", kInner, kHidden, o.mlp_biases);
  }
  linear("down", kHidden, kInner, o.mlp_biases);
  return t;
}

at::Tensor Get(const Named& t, const std::string& name) {
  const auto it = t.find(name);
  return it == t.end() ? at::Tensor() : it->second;
}

// Two documents a row, of different lengths in each; or one.
at::Tensor Positions(const Options& o) {
  at::Tensor positions = at::zeros({kBatch, kLength}, at::kLong);
  for (int64_t row = 0; row < kBatch; ++row) {
    const int64_t end = o.packed ? 20 + 30 * row : kLength;
    positions[row].narrow(0, 0, end).copy_(at::arange(end));
    positions[row]
        .narrow(0, end, kLength - end)
        .copy_(at::arange(kLength - end));
  }
  return positions;
}

at::Tensor Table(const Options& o) {
  return o.rotated == 0 ? at::Tensor() : RopeTable(kLength, o.rotated, 100.0);
}

TransformerBlockOptions BlockOptions(const Options& o) {
  TransformerBlockOptions options;
  options.shape = {kBatch, kHeads, kKvHeads, kHeadDim, true};
  options.shape.scale = o.scale;
  options.shape.softcap = o.softcap;
  options.shape.window = o.window;
  options.eps = kEps;
  options.rope_table = Table(o);
  options.norm_plus_one = o.plus_one;
  options.activation = o.gelu ? Activation::kGeluTanh : Activation::kSilu;
  options.parameters = {0, 1, 2, 3, 4, 5, 6};
  if (!o.packed) return options;
  const at::Tensor positions = Positions(o);
  options.packing = c10::make_intrusive<PackedRows>(positions);
  if (o.rotated > 0) {
    options.rope_table =
        options.rope_table.index_select(0, positions.reshape({-1}));
  }
  return options;
}

TransformerBlockWeights Weights(const Named& t) {
  const auto get = [&](const std::string& name) { return Get(t, name); };
  const auto adapter = [&](const std::string& name) {
    Adapter made;
    made.a = get(name + "_a");
    made.b = get(name + "_b");
    made.scale = 1.5;
    return made;
  };
  TransformerBlockWeights w;
  AttentionWeights& a = w.attention;
  a.norm = get("norm");
  a.q = get("q");
  a.k = get("k");
  a.v = get("v");
  a.adapters = {adapter("q"), adapter("k"), adapter("v")};
  a.q_bias = get("q_bias");
  a.k_bias = get("k_bias");
  a.v_bias = get("v_bias");
  a.q_norm = get("q_norm");
  a.k_norm = get("k_norm");
  w.output = get("o");
  w.output_adapter = adapter("o");
  w.output_bias = get("o_bias");
  w.attention_post_norm = get("attention_post_norm");
  GatedMlpWeights& m = w.mlp;
  m.norm = get("mlp_norm");
  m.gate = get("gate");
  m.up = get("up");
  m.down = get("down");
  m.adapters = {adapter("gate"), adapter("up"), adapter("down")};
  m.gate_bias = get("gate_bias");
  m.up_bias = get("up_bias");
  m.down_bias = get("down_bias");
  m.post_norm = get("mlp_post_norm");
  return w;
}

// The formulas on ATen's operators.
class Reference {
 public:
  Reference(const Options& o, const Named& t) : o_(o), t_(t) {}

  at::Tensor Run() const {
    const at::Tensor& x = t_.at("x");
    at::Tensor n = Norm("norm", x), q, k, v;
    const int64_t qw = kHeads * kHeadDim, kv = kKvHeads * kHeadDim;
    if (o_.stored_as_one) {
      const at::Tensor all = Linear("q", n);
      q = all.narrow(1, 0, qw);
      k = all.narrow(1, qw, kv);
      v = all.narrow(1, qw + kv, kv);
    } else {
      q = Linear("q", n);
      k = Linear("k", n);
      v = Linear("v", n);
    }
    const at::Tensor mixed = Attention(Rope(NormQk("q_norm", q)),
                                       Rope(NormQk("k_norm", k)), Heads(v));
    const at::Tensor y = x + Norm("attention_post_norm", Linear("o", mixed));
    if (!o_.mlp) return y;
    n = Norm("mlp_norm", y);
    at::Tensor gate = Linear("gate", n), up;
    if (o_.stored_as_one) {
      up = gate.narrow(1, kInner, kInner);
      gate = gate.narrow(1, 0, kInner);
    } else {
      up = Linear("up", n);
    }
    gate = o_.gelu ? at::gelu(gate, "tanh") : at::silu(gate);
    return y + Norm("mlp_post_norm", Linear("down", gate * up));
  }

 private:
  at::Tensor Norm(const std::string& name, const at::Tensor& x) const {
    const at::Tensor weight = Get(t_, name);
    if (!weight.defined()) return x;
    return x * (x * x).mean({-1}, true).add(kEps).rsqrt() *
           (o_.plus_one ? weight + 1.0 : weight);
  }
  at::Tensor NormQk(const std::string& name, const at::Tensor& x) const {
    return o_.qk_norm == QueryKeyNorm::kHead
               ? Norm(name, x.reshape({-1, kHeadDim})).view({kRows, -1})
               : Norm(name, x);
  }
  at::Tensor Linear(const std::string& name, const at::Tensor& x) const {
    at::Tensor y = x.mm(t_.at(name).t());
    if (t_.count(name + "_bias") > 0) y = y + t_.at(name + "_bias");
    if (!o_.adapters) return y;
    return y + 1.5 * x.mm(t_.at(name + "_a").t()).mm(t_.at(name + "_b").t());
  }
  // [batch, heads, T, head_dim].
  at::Tensor Heads(const at::Tensor& x) const {
    return x.reshape({kBatch, kLength, -1, kHeadDim}).transpose(1, 2);
  }
  at::Tensor Rope(const at::Tensor& x) const {
    const at::Tensor heads = Heads(x);
    if (o_.rotated == 0) return heads;
    const int64_t half = o_.rotated / 2;
    const at::Tensor table = Table(o_)
                                 .index_select(0, Positions(o_).reshape({-1}))
                                 .view({kBatch, 1, kLength, o_.rotated})
                                 .to(x.scalar_type());
    const at::Tensor c = table.narrow(3, 0, half);
    const at::Tensor s = table.narrow(3, half, half);
    const at::Tensor a = heads.narrow(3, 0, half);
    const at::Tensor b = heads.narrow(3, half, half);
    return at::cat({a * c - b * s, b * c + a * s,
                    heads.narrow(3, o_.rotated, kHeadDim - o_.rotated)},
                   3);
  }
  at::Tensor Attention(const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v) const {
    const int64_t group = kHeads / kKvHeads;
    const double scale =
        o_.scale != 0.0 ? o_.scale : 1.0 / std::sqrt(double{kHeadDim});
    at::Tensor scores =
        at::matmul(q, k.repeat_interleave(group, 1).transpose(2, 3)) * scale;
    if (o_.softcap != 0.0) {
      scores = at::tanh(scores / o_.softcap) * o_.softcap;
    }
    const at::Tensor t = at::arange(kLength);
    const at::Tensor ago = t.unsqueeze(1) - t.unsqueeze(0);
    at::Tensor hidden = ago < 0;
    if (o_.window > 0) hidden = hidden | (ago >= o_.window);
    const at::Tensor document = Positions(o_).eq(0).cumsum(1);
    hidden = hidden | (document.unsqueeze(1) != document.unsqueeze(2));
    return at::matmul(
               at::softmax(scores.masked_fill(hidden.unsqueeze(1), -1e30), -1),
               v.repeat_interleave(group, 1))
        .transpose(1, 2)
        .reshape({kRows, -1});
  }

  const Options& o_;
  const Named& t_;
};

// The output, as "y", and the gradients by name.
template <typename Block>
Named Graph(const Named& inputs, at::ScalarType type, const Block& block) {
  Named t;
  for (const auto& [name, tensor] : inputs) {
    t[name] = tensor.to(type).clone().set_requires_grad(true);
  }
  const at::Tensor y = block(t);
  const at::Tensor d_y = at::arange(y.numel()).cos().view(y.sizes());
  torch::autograd::backward({y}, {d_y.to(type)});
  Named results = {{"y", y.detach()}};
  for (const auto& [name, tensor] : t) results[name] = tensor.grad();
  return results;
}

Named RunBlock(const Options& o, const Named& inputs, bool fused,
               at::ScalarType type) {
  return Graph(inputs, type, [&](const Named& t) {
    return fused
               ? FusedTransformerBlock(t.at("x"), Weights(t), BlockOptions(o))
               : PlainTransformerBlock(t.at("x"), Weights(t), BlockOptions(o));
  });
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  return (a.to(at::kDouble) - wide).norm().item<double>() /
         std::max(0.1, wide.norm().item<double>());
}

std::string NameOf(const Options& o) {
  return std::string(o.name) + (o.adapters ? " with adapters" : "") +
         (o.packed ? " packed" : "");
}

TEST(BlockOptionsTest, FusedAndPlainEqualTheFormulas) {
  for (const Options& o : AllOptions()) {
    SCOPED_TRACE(NameOf(o));
    const Named inputs = Inputs(o);
    const Named exact = Graph(inputs, at::kDouble, [&](const Named& t) {
      return Reference(o, t).Run();
    });
    for (const bool fused : {true, false}) {
      const Named got = RunBlock(o, inputs, fused, at::kFloat);
      for (const auto& [name, wanted] : exact) {
        ASSERT_TRUE(got.at(name).defined()) << name;
        EXPECT_LT(Distance(got.at(name), wanted), 5e-5)
            << name << (fused ? " fused" : " plain");
      }
    }
  }
}

// On inputs that are rounded before. Between fused and plain only the order of
// sums differs, of which each term may be rounded: of adapters' gradients to
// their input, and of the two gradients to what a branch is added to, which the
// fused block rounds once.
TEST(BlockOptionsTest, InSixteenBitsFusedEqualsPlainAndTheFormulas) {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const bool bf16 = type == at::kBFloat16;
    for (const Options& o : AllOptions()) {
      SCOPED_TRACE(NameOf(o) + (bf16 ? " bf16" : " fp16"));
      Named halves;
      for (const auto& [name, tensor] : Inputs(o)) {
        halves[name] = tensor.to(type);
      }
      const Named exact = Graph(halves, at::kDouble, [&](const Named& t) {
        return Reference(o, t).Run();
      });
      const Named fused = RunBlock(o, halves, /*fused=*/true, type);
      const Named plain = RunBlock(o, halves, /*fused=*/false, type);
      const double unit = bf16 ? 1.0 : 0.25;
      for (const auto& [name, wanted] : exact) {
        const double most = (name == "y" ? 0.03 : 0.4) * unit;
        EXPECT_LT(Distance(fused.at(name), wanted), most) << name << " fused";
        EXPECT_LT(Distance(plain.at(name), wanted), most) << name << " plain";
        const bool same =
            name == "y" || (name != "x" && !o.adapters && !o.post_norms);
        if (same) {
          EXPECT_TRUE(at::equal(fused.at(name), plain.at(name))) << name;
        } else {
          EXPECT_LT(Distance(fused.at(name), plain.at(name)), 0.05 * unit)
              << name;
        }
      }
    }
  }
}

TEST(BlockOptionsTest, GateAndUpAgainAreTheSameBits) {
  for (const Options& o : AllOptions()) {
    for (const bool fused : {true, false}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(NameOf(o) + (fused ? " fused" : " plain"));
        const Named inputs = Inputs(o);
        const Named kept = RunBlock(o, inputs, fused, type);
        const RecomputingMlp recomputing;
        const Named again = RunBlock(o, inputs, fused, type);
        for (const auto& [name, wanted] : kept) {
          EXPECT_TRUE(at::equal(again.at(name), wanted)) << name;
        }
      }
    }
  }
}

// Token by token, as when a model generates.
TEST(BlockOptionsTest, ACacheGivesTheSame) {
  const at::AutoGradMode no_gradients(false);
  for (const Options& o : AllOptions()) {
    if (o.packed) continue;
    SCOPED_TRACE(NameOf(o));
    Named t;
    for (const auto& [name, tensor] : Inputs(o)) {
      t[name] = tensor.to(at::kFloat);
    }
    const at::Tensor whole =
        PlainTransformerBlock(t.at("x"), Weights(t), BlockOptions(o))
            .view({kBatch, kLength, kHidden});
    const at::Tensor x = t.at("x").view({kBatch, kLength, kHidden});
    const at::Tensor table = Table(o);
    TransformerBlockOptions options = BlockOptions(o);
    CacheExtent extent = {kBatch, kLength,
                          options.shape.kv_heads * options.shape.head_dim,
                          x.options()};
    LayerCache cache(&extent);
    options.cache = &cache;
    for (const int64_t count : {40, 1, 1, 28}) {
      const int64_t begin = extent.length;
      if (table.defined()) {
        options.rope_table = table.narrow(0, begin, count);
      }
      const at::Tensor y =
          TransformerBlock(x.narrow(1, begin, count).reshape({-1, kHidden}),
                           Weights(t), options);
      EXPECT_LT(Distance(y.view({kBatch, count, kHidden}),
                         whole.narrow(1, begin, count)),
                1e-5)
          << begin;
      extent.length += count;
    }
  }
}

// Keeps sums of the stored matrices.
class Sums final : public GradientSink {
 public:
  Place Open(int parameter) override {
    at::Tensor& sum = sums[parameter];
    const bool first = !sum.defined();
    if (first) sum = at::full(shapes.at(parameter), 1e30f);
    return {sum.detach(), !first};
  }
  std::map<int, std::vector<int64_t>> shapes;
  std::map<int, at::Tensor> sums;
};

TEST(BlockOptionsTest, PartsOfAStoredMatrixGoToItsOnePlace) {
  Options o = {"stored_as_one"};
  o.stored_as_one = true;
  const Named inputs = Inputs(o);
  const Named wanted = RunBlock(o, inputs, /*fused=*/true, at::kFloat);
  Sums sums;
  const std::map<std::string, int> places = {
      {"q", 0}, {"o", 3}, {"gate", 4}, {"down", 6}};
  for (const auto& [name, place] : places) {
    sums.shapes[place] = wanted.at(name).sizes().vec();
  }
  for (const double times : {1.0, 2.0}) {
    Graph(inputs, at::kFloat, [&](const Named& t) {
      TransformerBlockOptions options = BlockOptions(o);
      options.sink = &sums;
      return FusedTransformerBlock(t.at("x"), Weights(t), options);
    });
    for (const auto& [name, place] : places) {
      EXPECT_LT(Distance(sums.sums.at(place), wanted.at(name) * times), 1e-6)
          << name;
    }
  }
}

TEST(BlockOptionsTest, FrozenBiasesAndNormsGetNoGradient) {
  Options o = {"everything"};
  o.post_norms = o.attention_biases = o.mlp_biases = true;
  o.qk_norm = QueryKeyNorm::kHead;
  const Named inputs = Inputs(o);
  for (const bool fused : {true, false}) {
    Named t;
    for (const auto& [name, tensor] : inputs) {
      const bool frozen = name.find("norm") != std::string::npos ||
                          name.find("bias") != std::string::npos;
      t[name] = tensor.to(at::kFloat).set_requires_grad(!frozen);
    }
    const at::Tensor y =
        fused ? FusedTransformerBlock(t.at("x"), Weights(t), BlockOptions(o))
              : PlainTransformerBlock(t.at("x"), Weights(t), BlockOptions(o));
    y.sum().backward();
    const Named all = RunBlock(o, inputs, fused, at::kFloat);
    EXPECT_TRUE(at::equal(all.at("y"), y.detach()));
    for (const auto& [name, tensor] : t) {
      EXPECT_EQ(tensor.grad().defined(), tensor.requires_grad()) << name;
    }
  }
}

}  // namespace
}  // namespace capstan::kernels
