// SPDX-License-Identifier: Apache-2.0
//
// Compares the layers' plans with their actual allocations. LibTorch's products
// of 16-bit matrices may allocate memory that depends on the processor: hence
// the wider bounds.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/context/wide_gradient_sink.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/moe.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/layers/weight.h"
#include "kernels/memory_testing.h"
#include "kernels/quant/pack_nf4_for_test.h"
#include "kernels/quant/packed_linear.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

struct Case {
  const char* name;
  int64_t batch, length, hidden, inner, heads, kv_heads;
  bool causal = true;
  bool packed = false;  // each row holds two documents
  int64_t rank = 0;     // of adapters on frozen weights; 0: none
  double dropout = 0.0;
  bool input_norms = true, post_norms = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  double softcap = 0.0;
  int64_t window = 0;
  bool nf4 = false;  // the matrices, which adapters' rank makes frozen
  bool dora = false;
  bool fp8 = false;  // products, in bfloat16 alone
};

constexpr Case kCases[] = {
    {"grouped", 8, 128, 256, 688, 8, 4},
    {"ungrouped", 8, 96, 128, 352, 4, 4},
    {"narrow_mlp", 8, 128, 128, 64, 8, 8},
    {"bidirectional", 8, 128, 256, 688, 8, 4, false, true},
    {"adapters", 8, 96, 128, 344, 4, 2, true, false, 8},
    {"dropout", 8, 96, 128, 344, 4, 4, true, false, 16, 0.1},
    {"qwen3", 8, 128, 256, 688, 8, 4, true, false, 0, 0.0, true, false,
     QueryKeyNorm::kHead},
    {"gemma3", 8, 128, 256, 688, 8, 4, true, false, 0, 0.0, true, true,
     QueryKeyNorm::kHead},
    {"olmo2", 8, 128, 256, 688, 8, 4, true, false, 0, 0.0, false, true,
     QueryKeyNorm::kRow},
    {"gemma2_adapters", 8, 128, 256, 688, 8, 4, true, false, 8, 0.0, true,
     true},
    {"nf4_adapters", 1, 96, 256, 688, 8, 4, true, false, 8, 0.0, true, false,
     QueryKeyNorm::kNone, 0.0, 0, true},
    {"dora", 8, 96, 128, 344, 4, 2, true, false, 8, 0.0, true, false,
     QueryKeyNorm::kNone, 0.0, 0, false, true},
    {"dora_dropout_post_norms", 8, 96, 128, 344, 4, 4, true, false, 16, 0.1,
     true, true, QueryKeyNorm::kNone, 0.0, 0, false, true},
    {"gemma2", 8, 128, 256, 688, 8, 4, true, false, 0, 0.0, true, true,
     QueryKeyNorm::kNone, 50.0, 64},
    {"gemma2_ungrouped", 8, 128, 256, 688, 8, 8, true, false, 0, 0.0, true,
     true, QueryKeyNorm::kNone, 50.0},
    {"windowed", 8, 128, 256, 688, 8, 4, true, false, 0, 0.0, true, false,
     QueryKeyNorm::kNone, 0.0, 64},
    {"fp8", 8, 128, 256, 688, 8, 4, true, false, 0, 0.0, true, false,
     QueryKeyNorm::kNone, 0.0, 0, false, false, true},
    {"fp8_adapters", 8, 96, 128, 352, 4, 2, true, false, 8, 0.0, true, false,
     QueryKeyNorm::kNone, 0.0, 0, false, false, true},
};

// Gradient places allocated in advance.
class Places final : public GradientSink, public WideGradientSink {
 public:
  explicit Places(const std::vector<at::Tensor>& matrices)
      : wide_(matrices[0].scalar_type() != at::kFloat) {
    for (const at::Tensor& t : matrices)
      places_.push_back(at::zeros(t.sizes()));
  }
  Place Open(int parameter) override {
    return wide_ ? Place() : PlaceOf(parameter);
  }
  Place OpenWide(int parameter) override {
    return wide_ ? PlaceOf(parameter) : Place();
  }

 private:
  Place PlaceOf(int parameter) const {
    return {places_[parameter].detach(), /*add=*/false};
  }
  const bool wide_;
  std::vector<at::Tensor> places_;
};

class Block {
 public:
  Block(const Case& c, at::ScalarType dtype) : case_(c), dtype_(dtype) {
    const int64_t head_dim = c.hidden / c.heads;
    shape_ = {c.batch * c.length,
              c.hidden,
              c.inner,
              {c.batch, c.heads, c.kv_heads, head_dim, c.causal},
              dtype,
              c.packed,
              c.rank == 0};
    shape_.input_norms = c.input_norms;
    shape_.post_norms = c.post_norms;
    shape_.query_key_norm = c.query_key_norm;
    x_ = Random({shape_.rows, c.hidden}).set_requires_grad(true);
    const int64_t kv = shape_.key_width();
    weights_.attention = {Norm(), Matrix(c.hidden, c.hidden),
                          Matrix(kv, c.hidden), Matrix(kv, c.hidden)};
    weights_.output = Matrix(c.hidden, c.hidden);
    weights_.mlp = {Norm(), Matrix(c.inner, c.hidden),
                    Matrix(c.inner, c.hidden), Matrix(c.hidden, c.inner)};
    AddNorms();
    shape_.attention.softcap = c.softcap;
    shape_.attention.window = c.window;
    options_.shape = shape_.attention;
    // As an earlier layer has left it.
    options_.masks = c10::make_intrusive<AttentionMasks>();
    if (AttentionMaskBytes(shape_.attention, c.length, dtype) > 0) {
      options_.masks->Get(shape_.attention, c.length, at::dtype(dtype));
    }
    options_.eps = 1e-5;
    options_.rope_table = RopeTable(c.length, head_dim, 10000.0);
    if (c.packed) Pack();
    if (c.rank > 0) Adapt();
    if (c.nf4) Quantise();
    if (c.fp8 && dtype == at::kBFloat16) MultiplyInFp8();
    places_ = std::make_unique<Places>(matrices_);
    options_.sink = places_.get();
    options_.parameters = {0, 1, 2, 3, 4, 5, 6};
  }

  const TransformerBlockShape& shape() const { return shape_; }
  // With what products with packed matrices add to the block's own.
  OperatorMemory Planned(bool fused) const {
    OperatorMemory memory = fused ? PlanTransformerBlock(shape_)
                                  : PlanPlainTransformerBlock(shape_);
    memory.forward += packed_;
    memory.backward += packed_;
    return memory;
  }

  OperatorMemory Measured(bool fused) const {
    return Measure([&] {
      return fused ? FusedTransformerBlock(x_, weights_, options_)
                   : PlainTransformerBlock(x_, weights_, options_);
    });
  }

  const at::Tensor& x() const { return x_; }
  const TransformerBlockWeights& weights() const { return weights_; }
  const TransformerBlockOptions& options() const { return options_; }

 private:
  at::Tensor Random(at::IntArrayRef shape) const {
    return (at::randn(shape) * 0.1).to(dtype_);
  }
  at::Tensor Norm() const { return NormOf(case_.hidden); }
  at::Tensor NormOf(int64_t width) const {
    const at::Tensor ones = at::ones({width}, at::dtype(dtype_));
    return shape_.trained ? TrainedWeight(ones) : ones;
  }
  at::Tensor Matrix(int64_t out, int64_t in) {
    const at::Tensor matrix = Random({out, in});
    matrices_.push_back(shape_.trained ? TrainedWeight(matrix) : matrix);
    return matrices_.back();
  }
  // As the case says.
  void AddNorms() {
    if (!case_.input_norms) {
      weights_.attention.norm.reset();
      weights_.mlp.norm.reset();
    }
    if (case_.post_norms) {
      weights_.attention_post_norm = Norm();
      weights_.mlp.post_norm = Norm();
    }
    if (case_.query_key_norm == QueryKeyNorm::kNone) return;
    const bool head = case_.query_key_norm == QueryKeyNorm::kHead;
    const int64_t width = shape_.attention.head_dim;
    weights_.attention.q_norm = NormOf(head ? width : shape_.query_width());
    weights_.attention.k_norm = NormOf(head ? width : shape_.key_width());
  }
  // Two documents per row, of different lengths in each.
  void Pack() {
    const at::Tensor positions =
        at::zeros({case_.batch, case_.length}, at::kLong);
    for (int64_t row = 0; row < case_.batch; ++row) {
      const int64_t end = case_.length * (row + 1) / (case_.batch + 1);
      positions[row].narrow(0, 0, end).copy_(at::arange(end));
      positions[row]
          .narrow(0, end, case_.length - end)
          .copy_(at::arange(case_.length - end));
    }
    options_.packing = c10::make_intrusive<PackedRows>(positions);
    options_.rope_table =
        options_.rope_table.index_select(0, positions.reshape({-1}));
  }
  void MultiplyInFp8() {
    AttentionWeights& attention = weights_.attention;
    GatedMlpWeights& mlp = weights_.mlp;
    for (Weight* weight : {&attention.q, &attention.k, &attention.v,
                           &weights_.output, &mlp.gate, &mlp.up, &mlp.down}) {
      weight->fp8 = Fp8Scaling::kTensor;
    }
    shape_.fp8 = true;
  }
  // Adds adapters to q, v and down.
  void Adapt() {
    const auto adapt = [&](BlockMatrix matrix, Adapter* adapter) {
      const at::Tensor& w = matrices_[matrix];
      adapter->a = TrainedWeight(Random({case_.rank, w.size(1)}));
      adapter->b = TrainedWeight(Random({w.size(0), case_.rank}));
      adapter->dropout = {case_.dropout, /*key=*/3, at::arange(case_.batch)};
      shape_.adapters[matrix] = {case_.rank, case_.dropout > 0.0, case_.dora};
      if (!case_.dora) return;
      adapter->magnitude = TrainedWeight(Random({w.size(0)}) + 1.0);
      // As if known: what makes them comes before the block's own memory.
      adapter->known_norms = &norms_[matrix];
      norms_[matrix] = AdaptedNorms(w, *adapter);
    };
    adapt(kQueryMatrix, &weights_.attention.adapters[0]);
    adapt(kValueMatrix, &weights_.attention.adapters[2]);
    adapt(kDownMatrix, &weights_.mlp.adapters[2]);
  }
  void Quantise() {
    AttentionWeights& attention = weights_.attention;
    GatedMlpWeights& mlp = weights_.mlp;
    for (Weight* weight : {&attention.q, &attention.k, &attention.v,
                           &weights_.output, &mlp.gate, &mlp.up, &mlp.down}) {
      const at::Tensor dense = weight->tensor.to(at::kFloat);
      const int64_t out = dense.size(0), in = dense.size(1);
      const Nf4Layout layout(dense.numel(), /*double_quantised=*/true);
      const at::Tensor bytes = at::empty({layout.bytes}, at::kByte);
      PackNf4(dense.const_data_ptr<float>(), layout,
              bytes.mutable_data_ptr<uint8_t>());
      *weight = Weight(bytes, WeightFormat::kNf4Double, out, in);
      packed_ = std::max(packed_, PlanPackedLinear(out, in, dtype_));
    }
  }

  const Case case_;
  const at::ScalarType dtype_;
  TransformerBlockShape shape_;
  at::Tensor x_;
  std::vector<at::Tensor> matrices_;  // in BlockMatrix's order
  std::array<at::Tensor, kBlockMatrices> norms_;
  int64_t packed_ = 0;  // what a product with a packed matrix allocates
  TransformerBlockWeights weights_;
  TransformerBlockOptions options_;
  std::unique_ptr<Places> places_;
};

class LayersMemoryTest : public ::testing::TestWithParam<Case> {};

// Calls `expect` with gate and up kept, and without.
template <typename F>
void WithAndWithoutGateAndUp(const F& expect) {
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again ? "gate and up again" : "gate and up kept");
    const RecomputingMlp recomputing(again);
    expect();
  }
}

TEST_P(LayersMemoryTest, FusedBlock) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(dtype);
    const Block block(GetParam(), dtype);
    ASSERT_TRUE(CanFuseTransformerBlock(block.x()));
    // In 16 bits, packed matrices are widened one by one, the largest of which
    // needn't be where the block's own memory peaks.
    const double bound = GetParam().nf4 && dtype != at::kFloat ? 0.12 : 0.01;
    WithAndWithoutGateAndUp([&] {
      ExpectNear(block.Planned(/*fused=*/true), block.Measured(/*fused=*/true),
                 bound);
    });
  }
}

TEST_P(LayersMemoryTest, PlainBlock) {
  const Block block(GetParam(), at::kBFloat16);
  // The plan has the largest product in 8 or 4 bits at each node's peak.
  const double bound = GetParam().fp8 || GetParam().nf4 ? 0.35 : 0.12;
  WithAndWithoutGateAndUp([&] {
    ExpectNear(block.Planned(/*fused=*/false), block.Measured(/*fused=*/false),
               bound);
  });
}

// The parts in float32: in 16 bits LibTorch has workspaces of its own, which
// differ by processor and are as large as these small matrices.
TEST_P(LayersMemoryTest, GatedMlp) {
  const Block block(GetParam(), at::kFloat);
  const TransformerBlockShape& s = block.shape();
  WithAndWithoutGateAndUp([&] {
    MemoryLedger forward;
    PlanGatedMlp(s, &forward);
    // Its backward also frees x.
    MemoryLedger backward(forward.live() + s.x());
    PlanGatedMlpBackward(s, &backward);
    OperatorMemory planned = MemoryOf(forward, backward);
    planned.backward -= s.x();
    ExpectNear(planned, Measure([&] {
                 return GatedMlp(block.x(), block.weights().mlp,
                                 block.options());
               }),
               0.17);
  });
}

TEST_P(LayersMemoryTest, AttentionOutput) {
  const Block block(GetParam(), at::kFloat);
  const TransformerBlockShape& s = block.shape();
  MemoryLedger forward;
  PlanAttentionOutput(s, &forward);
  MemoryLedger backward(forward.live());
  PlanAttentionOutputBackward(s, &backward);
  // x serves as the attention's output and as the residual.
  ExpectNear(MemoryOf(forward, backward), Measure([&] {
               return AttentionOutput(block.x(), block.x().detach(),
                                      block.weights(), block.options());
             }),
             0.25);
}

TEST_P(LayersMemoryTest, AttentionInput) {
  const Block block(GetParam(), at::kFloat);
  MemoryLedger planned;
  PlanAttentionInput(block.shape(), &planned);
  QueryKeyValue out;  // what Measure doesn't hold
  const OperatorMemory measured = Measure([&] {
    out = AttentionInput(block.x(), block.weights().attention, block.options());
    return out.v;
  });
  const double most = 0.1 * static_cast<double>(planned.peak());
  EXPECT_NEAR(planned.live(), measured.kept, most);
  EXPECT_NEAR(planned.peak() - planned.live(), measured.forward, most);
}

TEST_P(LayersMemoryTest, RmsNorm) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Block block(GetParam(), dtype);
    const TransformerBlockShape& s = block.shape();
    MemoryLedger forward;
    PlanRmsNorm(s.rows, s.hidden, dtype, &forward);
    MemoryLedger backward(forward.live());
    PlanRmsNormBackward(s.rows, s.hidden, dtype, s.trained, &backward);
    const at::Tensor norm = block.weights().mlp.norm.defined()
                                ? block.weights().mlp.norm
                                : block.weights().mlp.post_norm;
    ExpectNear(MemoryOf(forward, backward),
               Measure([&] { return RmsNorm(block.x(), norm, 1e-5); }), 0.01);
  }
}

TEST(MoeMemoryTest, IsPlanned) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    MoeShape s;
    s.rows = 1024;
    s.hidden = 128;
    s.intermediate = 96;
    s.experts = 8;
    s.top_k = 2;
    s.dtype = dtype;
    MoeOptions options;
    options.eps = 1e-5;
    options.top_k = s.top_k;
    MoeWeights weights;
    const auto matrix = [&](int64_t out, int64_t in) {
      return TrainedWeight((at::randn({out, in}) * 0.1).to(dtype));
    };
    weights.norm = TrainedWeight(at::ones({s.hidden}, at::dtype(dtype)));
    weights.router = matrix(s.experts, s.hidden);
    std::vector<at::Tensor> matrices;
    for (int e = 0; e < s.experts; ++e) {
      ExpertWeights expert;
      expert.gate = matrix(s.intermediate, s.hidden);
      expert.up = matrix(s.intermediate, s.hidden);
      expert.down = matrix(s.hidden, s.intermediate);
      for (const Weight* w : {&expert.gate, &expert.up, &expert.down}) {
        matrices.push_back(w->tensor);
      }
      weights.experts.push_back(std::move(expert));
      options.parameters.push_back({3 * e, 3 * e + 1, 3 * e + 2});
    }
    Places places(matrices);
    options.sink = &places;
    const at::Tensor x =
        at::randn({s.rows, s.hidden}).to(dtype).set_requires_grad(true);
    WithAndWithoutGateAndUp([&] {
      ExpectNear(PlanMoeMlp(s),
                 Measure([&] { return MoeMlp(x, weights, options).output; }),
                 0.15);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LayersMemoryTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

// What the nodes save, by hand.
TEST(GpuPlanTest, Keeps) {
  TransformerBlockShape s;
  s.rows = 8 * 128;
  s.hidden = 256;
  s.intermediate = 688;
  s.attention = {8, 8, 4, 32, true};
  s.dtype = at::kBFloat16;
  s.gpu = true;
  const int64_t log_sum_exp = s.rows * 8 * kFloatBytes;
  const int64_t projections = s.q() + 2 * s.kv() + s.rstd();
  const int64_t mlp = s.x() + s.rstd() + 2 * s.inner();
  OperatorMemory plan = PlanTransformerBlock(s);
  EXPECT_EQ(plan.kept,
            projections + s.q() + log_sum_exp + mlp + /*output=*/s.x());
  // The gradients of the block's own matrices are written to their sums; those
  // of the norms are tensors.
  const int64_t norms = 2 * s.norm_gradient();
  s.trained = false;
  EXPECT_EQ(PlanTransformerBlock(s).backward + norms, plan.backward);
  // No fused kernel has float32 and groups: q, scaled, and for each of its
  // heads k and v take the place of q, k and v, and all probabilities stay.
  s.trained = true;
  s.dtype = at::kFloat;
  plan = PlanTransformerBlock(s);
  const int64_t probabilities = s.rows * 8 * 128 * kFloatBytes;
  EXPECT_EQ(plan.kept, s.rstd() + 3 * s.q() + probabilities + s.q() + s.x() +
                           s.rstd() + 2 * s.inner() + s.x());
  s.gpu = false;
  EXPECT_LT(PlanTransformerBlock(s).kept, plan.kept);
}

}  // namespace
}  // namespace capstan::kernels
