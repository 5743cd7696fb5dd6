// SPDX-License-Identifier: Apache-2.0
//
// Attention within the documents of packed rows, compared with a masked formula
// and with each document alone, and independent of hidden tokens.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "kernels/attention/attention.h"
#include "kernels/attention/plain_attention_for_test.h"
#include "kernels/layers/block_parts.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

struct Case {
  Lengths lengths;
  AttentionShape shape;
  at::Tensor positions() const { return Positions(lengths); }
  Packing packing() const {
    return c10::make_intrusive<PackedRows>(positions());
  }
  int64_t rows() const { return positions().numel(); }
  Tensors Inputs() const {
    const int64_t kv = shape.kv_heads * shape.head_dim;
    return {Wave({rows(), shape.heads * shape.head_dim}, 2.0),
            Wave({rows(), kv}, 2.0), Wave({rows(), kv})};
  }
  Operator Packed() const {
    return [shape = shape, packing = packing()](const Tensors& in) {
      return Attention(in[0], in[1], in[2], shape, packing);
    };
  }
};

// Each of them causal, and bidirectional.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const bool causal : {true, false}) {
    cases.insert(cases.end(), {{{{1, 4, 3, 1}, {9}}, {2, 3, 1, 4, causal}},
                               {{{1, 1, 1}}, {1, 2, 2, 4, causal}},
                               {{{65, 1, 64, 7}, {3, 130, 1, 3}, {137}},
                                {3, 4, 2, 8, causal}},
                               {{{150}, {149, 1}}, {2, 2, 1, 16, causal}}});
  }
  // Windows, soft-caps and scales, as in Gemma 2: all at once.
  const Lengths lengths = {{65, 1, 64, 7}, {3, 130, 1, 3}, {137}};
  AttentionShape shape = {3, 4, 2, 8};
  for (const int64_t window : {1, 5, 63, 64, 70}) {
    shape.window = window;
    cases.push_back({lengths, shape});
  }
  for (const bool causal : {true, false}) {
    cases.push_back({lengths, {3, 4, 2, 8, causal, 0.5, 3.0}});
  }
  cases.push_back({lengths, {3, 4, 2, 8, true, 0.25, 0.0}});
  cases.push_back({lengths, {3, 4, 2, 8, true, 0.5, 2.0, 9}});
  cases.push_back({{{200}}, {1, 3, 1, 4, true, 0.5, 2.0, 67}});
  return cases;
}

TEST(PackedAttentionTest, EqualsThePlainFormulaWithAMask) {
  for (const Case& c : Cases()) {
    ExpectSame(
        c.Packed(),
        [&](const Tensors& in) {
          return PlainAttention(in, c.shape, c.positions());
        },
        c.Inputs());
  }
}

// In other types than float32, where a mask is made for each document or found
// in what layers share.
TEST(PackedAttentionTest, SharedMasksChangeNothing) {
  for (const Case& c : Cases()) {
    const auto masks = c10::make_intrusive<AttentionMasks>();
    Tensors in = c.Inputs();
    for (at::Tensor& t : in) t = t.to(at::kBFloat16);
    const at::Tensor alone = c.Packed()(in);
    for (int layer = 0; layer < 2; ++layer) {
      EXPECT_TRUE(at::equal(
          Attention(in[0], in[1], in[2], c.shape, c.packing(), masks), alone));
    }
    EXPECT_LT((alone.to(at::kDouble) -
               PlainAttention({in[0].to(at::kDouble), in[1].to(at::kDouble),
                               in[2].to(at::kDouble)},
                              c.shape, c.positions()))
                  .abs()
                  .max()
                  .item<double>(),
              0.05);
  }
}

TEST(PackedAttentionTest, MaskShowsWhatIsSeen) {
  const PackedRows packing(Positions({{2, 1}}));
  const at::Tensor wanted =
      at::tensor({1, 0, 0, 1, 1, 0, 0, 0, 1}).to(at::kBool).view({1, 1, 3, 3});
  EXPECT_TRUE(at::equal(packing.mask(), wanted));
  const at::Tensor both_ways =
      at::tensor({1, 1, 0, 1, 1, 0, 0, 0, 1}).to(at::kBool).view({1, 1, 3, 3});
  EXPECT_TRUE(at::equal(packing.mask(/*causal=*/false), both_ways));
  EXPECT_TRUE(at::equal(packing.mask(), wanted));
}

// A document gets the same bits as alone: values and gradients.
TEST(PackedAttentionTest, DocumentsAreAsIfAlone) {
  for (const Case& c : Cases()) {
    const Tensors inputs = c.Inputs();
    for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      Tensors leaves;
      for (const at::Tensor& t : inputs) {
        leaves.push_back(t.to(type).requires_grad_(true));
      }
      const at::Tensor packed = c.Packed()(leaves);
      packed.backward(packed.detach().cos());
      int64_t begin = 0;
      for (const std::vector<int64_t>& row : c.lengths) {
        for (int64_t length : row) {
          Tensors alone;
          for (const at::Tensor& t : leaves) {
            alone.push_back(t.detach()
                                .narrow(0, begin, length)
                                .clone()
                                .requires_grad_(true));
          }
          AttentionShape shape = c.shape;
          shape.batch = 1;
          const at::Tensor y = Attention(alone[0], alone[1], alone[2], shape);
          y.backward(y.detach().cos());
          EXPECT_TRUE(at::equal(packed.narrow(0, begin, length), y));
          for (int i = 0; i < 3; ++i) {
            EXPECT_TRUE(at::equal(leaves[i].grad().narrow(0, begin, length),
                                  alone[i].grad()))
                << c10::toString(type) << " input " << i;
          }
          begin += length;
        }
      }
    }
  }
}

TEST(PackedAttentionTest, OneDocumentARowIsNoPacking) {
  for (const bool causal : {true, false}) {
    const Case c = {{{70}, {70}}, {2, 4, 2, 8, causal}};
    const Tensors inputs = c.Inputs();
    const Operator unpacked = [&](const Tensors& in) {
      return Attention(in[0], in[1], in[2], c.shape);
    };
    const Tensors wanted = RunBoth(unpacked, inputs, at::kFloat);
    const Tensors got = RunBoth(c.Packed(), inputs, at::kFloat);
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], wanted[i])) << "result " << i;
    }
  }
}

TEST(PackedAttentionTest, SameBitsOnAnyNumberOfThreads) {
  for (const Case& c : Cases()) {
    const Tensors inputs = c.Inputs();
    at::set_num_threads(1);
    const Tensors one = RunBoth(c.Packed(), inputs, at::kFloat);
    at::set_num_threads(3);
    const Tensors three = RunBoth(c.Packed(), inputs, at::kFloat);
    at::set_num_threads(1);
    for (size_t k = 0; k < one.size(); ++k) {
      EXPECT_TRUE(at::equal(one[k], three[k])) << "result " << k;
    }
  }
}

TEST(PackedAttentionTest, PositionsAreChecked) {
  const auto message = [](std::vector<int64_t> positions) -> std::string {
    try {
      PackedRows(at::tensor(positions).view({1, -1}));
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_EQ(message({0, 1, 0, 0, 1, 2}), "");
  EXPECT_NE(message({1, 2}).find("of row 0 must begin at 0"),
            std::string::npos);
  EXPECT_NE(message({0, 1, 3}).find("at 2 stands 3"), std::string::npos);
  EXPECT_NE(message({0, -1}).find("at 1 stands -1"), std::string::npos);
  EXPECT_ANY_THROW(PackedRows(at::tensor({0.0, 1.0}).view({1, 2})));
}

// A table with the row of each token in sequence rotates packed rows.
TEST(PackedAttentionTest, RopeTakesATableOfEachTokensPosition) {
  const at::Tensor table = RopeTable(6, 8, 100.0);
  const at::Tensor positions = at::tensor({0, 1, 0, 0, 1, 2}, at::kLong);
  const at::Tensor gathered = table.index_select(0, positions);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = Wave({6, 16}).to(type);
    at::Tensor packed = x.clone();
    ApplyRope(gathered, RopeDirection::kForward, 8, packed);
    int64_t begin = 0;
    for (int64_t length : {2, 1, 3}) {
      at::Tensor alone = x.narrow(0, begin, length).clone();
      ApplyRope(table.narrow(0, 0, length), RopeDirection::kForward, 8, alone);
      EXPECT_TRUE(at::equal(packed.narrow(0, begin, length), alone));
      begin += length;
    }
  }
}

}  // namespace
}  // namespace capstan::kernels
