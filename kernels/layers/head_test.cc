// SPDX-License-Identifier: Apache-2.0
//
// Compares the embedding, and the head with its loss, with plain formulas;
// token_loss_test.cc checks the precision of 16-bit types.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/context/gradient_sink.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/loss/token_loss.h"
#include "kernels/loss/tokens.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

at::Tensor PlainLossOf(const at::Tensor& logits, const at::Tensor& targets,
                       const at::Tensor& row_weights = {}) {
  const at::Tensor logs = at::log_softmax(logits, -1);
  const at::Tensor picked =
      logs.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  const at::Tensor counts = targets.ge(0).to(picked.dtype());
  if (!row_weights.defined()) return -(picked * counts).sum();
  return -(picked * counts * row_weights.to(picked.dtype())).sum();
}

at::Tensor PlainLoss(const at::Tensor& hidden, const at::Tensor& weight,
                     const at::Tensor& targets,
                     const at::Tensor& row_weights = {}) {
  return PlainLossOf(at::linear(hidden, weight), targets, row_weights);
}

const std::vector<int64_t> kTargets = {3, -100, 0, 10, 10, -100, 7};

TEST(HeadTest, HeadInPiecesOfRows) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  // One chunk of all rows; two, three and seven chunks.
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

TEST(HeadTest, CappedLogits) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  constexpr double kCap = 3.0;
  for (int64_t rows : {7, 3, 1}) {
    ExpectSame(
        [&](const Tensors& in) {
          return HeadCrossEntropySum(in[0], in[1], targets, TiedGradient(),
                                     rows * 11 * (in[1].element_size() + 4), {},
                                     {}, kCap);
        },
        [&](const Tensors& in) {
          const at::Tensor logits =
              kCap * at::tanh(at::linear(in[0], in[1]) / kCap);
          return PlainLossOf(logits, targets);
        },
        {Wave({7, 5}), Wave({11, 5}, 3.0)});
  }
}

// A few rows without a target, which the head processes too, and many.
const std::vector<std::vector<int64_t>> kSparseTargets = {
    {3, 1, 0, 10, 10, -100, 7, 4, 9},
    {-1, 1, -1, 10, -100, -100, 7, 4, -1},
    {-1, -1, -1, -1, -1, -1, 2, -1, -1}};

TEST(HeadTest, RowsHaveWeights) {
  const at::Tensor row_weights =
      at::tensor({0.5f, 2.0f, 0.0f, 1.25f, 3.0f, 40.0f, 1.0f, 0.25f, 0.75f});
  for (const std::vector<int64_t>& list : kSparseTargets) {
    const at::Tensor targets = at::tensor(list, at::kLong);
    for (int64_t rows : {9, 4, 1}) {
      SCOPED_TRACE(testing::Message() << list << " in pieces of " << rows);
      ExpectSame(
          [&](const Tensors& in) {
            return HeadCrossEntropySum(in[0], in[1], targets, TiedGradient(),
                                       rows * 11 * in[1].element_size(), {},
                                       row_weights);
          },
          [&](const Tensors& in) {
            return PlainLoss(in[0], in[1], targets, row_weights);
          },
          {Wave({9, 5}), Wave({11, 5}, 3.0)});
    }
  }
}

TEST(HeadTest, TiedHeadWithRowsLeftOutAndWeights) {
  const at::Tensor row_weights =
      at::tensor({0.5f, 2.0f, 0.0f, 1.25f, 3.0f, 40.0f, 1.0f, 0.25f, 0.75f});
  const at::Tensor tokens = at::tensor({0, 3, 3, 10, 2, 3, 0, 1, 1}, at::kLong);
  for (const std::vector<int64_t>& list : kSparseTargets) {
    const at::Tensor targets = at::tensor(list, at::kLong);
    for (int64_t rows : {9, 2}) {
      SCOPED_TRACE(testing::Message() << list << " in pieces of " << rows);
      ExpectSame(
          [&](const Tensors& in) {
            const auto tied = c10::make_intrusive<HeadGradient>();
            const at::Tensor x = Embedding(in[0], tokens, tied);
            return HeadCrossEntropySum(RmsNorm(x, in[1], kEps), in[0], targets,
                                       tied, rows * 11 * in[0].element_size(),
                                       {}, row_weights);
          },
          [&](const Tensors& in) {
            const at::Tensor x = at::embedding(in[0], tokens);
            return PlainLoss(PlainNorm(x, in[1]), in[0], targets, row_weights);
          },
          {Wave({11, 5}, 2.0), Wave({5})});
    }
  }
}

// Rows that are left out have no effect, to the bit.
TEST(HeadTest, RowsWithoutTargetsLeaveTheOthersAlone) {
  const at::Tensor targets = at::tensor(kSparseTargets[1], at::kLong);
  const at::Tensor seen = at::tensor({1, 3, 6, 7}, at::kLong);
  const at::Tensor left_out = at::tensor({0, 2, 4, 5, 8}, at::kLong);
  const at::Tensor row_weights = Wave({9}).to(at::kFloat);
  const Tensors inputs = {Wave({9, 5}), Wave({11, 5})};
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    const Tensors all = RunBoth(
        [&](const Tensors& in) {
          return HeadCrossEntropySum(in[0], in[1], targets, {}, kLogitsBytes,
                                     {}, row_weights);
        },
        inputs, type);
    const Tensors alone = RunBoth(
        [&](const Tensors& in) {
          return HeadCrossEntropySum(
              in[0], in[1], targets.index_select(0, seen), {}, kLogitsBytes, {},
              row_weights.index_select(0, seen));
        },
        {inputs[0].index_select(0, seen), inputs[1]}, type);
    EXPECT_TRUE(at::equal(all[0], alone[0]));
    EXPECT_TRUE(at::equal(all[1].index_select(0, seen), alone[1]));
    EXPECT_TRUE(at::equal(all[2], alone[2]));
    EXPECT_EQ(all[1].index_select(0, left_out).abs().max().item<float>(), 0.0f);
  }
}

TEST(HeadTest, WeightsOfOneChangeNoBit) {
  const at::Tensor targets = at::tensor({3, 1, 0, 10, 10, 2, 7}, at::kLong);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensors inputs = {Wave({7, 5}), Wave({11, 5})};
    std::vector<Tensors> results;
    for (const at::Tensor& row_weights : {at::Tensor(), at::ones({7})}) {
      results.push_back(RunBoth(
          [&](const Tensors& in) {
            return HeadCrossEntropySum(in[0], in[1], targets, {}, 100, {},
                                       row_weights);
          },
          inputs, type));
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
    }
  }
}

TEST(HeadTest, WeightsMustFit) {
  at::AutoGradMode no_gradients(false);
  const at::Tensor x = Wave({3, 5}).to(at::kFloat);
  const at::Tensor targets = at::tensor({0, 1, 2}, at::kLong);
  const auto loss = [&](const at::Tensor& row_weights) {
    return HeadCrossEntropySum(x, x, targets, {}, kLogitsBytes, {},
                               row_weights);
  };
  EXPECT_NO_THROW(loss(at::ones({3})));
  EXPECT_ANY_THROW(loss(at::ones({4})));
  EXPECT_ANY_THROW(loss(at::ones({3}, at::kDouble)));
}

TEST(HeadTest, TiedWeightGetsOneGradient) {
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

TEST(HeadTest, EmbeddingAlone) {
  const at::Tensor tokens = at::tensor({4, 1, 4, 4}, at::kLong);
  ExpectSame([&](const Tensors& in) { return Embedding(in[0], tokens, {}); },
             [&](const Tensors& in) { return at::embedding(in[0], tokens); },
             {Wave({6, 9})});
}

TEST(HeadTest, EmbeddingGradientIsSummedInFloatAndRoundedOnce) {
  constexpr int64_t kTokens = 700, kVocab = 9, kWidth = 33;
  std::vector<int64_t> ids(kTokens);
  for (int64_t i = 0; i < kTokens; ++i) ids[i] = i * i % 7;  // not all of them
  const at::Tensor tokens = at::tensor(ids, at::kLong);
  const at::Tensor dy = Wave({kTokens, kWidth}),
                   before = Wave({kVocab, kWidth});
  const int threads = at::get_num_threads();
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (at::ScalarType sum_type : {at::kFloat, type}) {
      // index_add_ runs in double, on the inputs of the function.
      const at::Tensor x = dy.to(type), start = before.to(sum_type);
      const at::Tensor wanted =
          start.to(at::kDouble).index_add(0, tokens, x.to(at::kDouble));
      Tensors got;
      for (int n : {1, 3}) {
        at::set_num_threads(n);
        got.push_back(start.clone());
        AddEmbeddingGradient(x, tokens, got.back());
      }
      at::set_num_threads(threads);
      EXPECT_TRUE(at::equal(got[0], got[1]));
      EXPECT_LT(Difference(got[0], wanted), sum_type == at::kFloat ? 3e-6
                                            : type == at::kHalf    ? 5.1e-4
                                                                   : 4e-3);
      // Tokens 3, 5 and 6 are no squares modulo 7; 7 and 8 aren't reached.
      for (int64_t t : {3, 5, 6, 7, 8}) {
        EXPECT_TRUE(at::equal(got[0][t], start[t])) << t;
      }
    }
  }
}

TEST(HeadTest, NoRows) {
  const at::Tensor none = at::empty({0}, at::kLong);
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensors embedding =
        RunBoth([&](const Tensors& in) { return Embedding(in[0], none, {}); },
                {Wave({6, 9})}, type);
    EXPECT_EQ(embedding[0].numel(), 0);
    EXPECT_EQ(embedding[1].abs().max().item<float>(), 0.0f);
    const Tensors head = RunBoth(
        [&](const Tensors& in) {
          return HeadCrossEntropySum(in[0], in[1], none, {});
        },
        {Wave({0, 9}), Wave({6, 9})}, type);
    EXPECT_EQ(head[0].item<float>(), 0.0f);
    EXPECT_EQ(head[2].abs().max().item<float>(), 0.0f);
  }
}

TEST(HeadTest, HeadScalesByTheIncomingGradient) {
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

TEST(HeadTest, FrozenHeadPassesOnTheGradientOfHidden) {
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

TEST(HeadTest, NoTargetsNoLoss) {
  const at::Tensor targets = at::tensor({-100, -100, -1}, at::kLong);
  at::Tensor hidden = Wave({3, 4}).to(at::kFloat).requires_grad_(true);
  at::Tensor weight = Wave({5, 4}).to(at::kFloat).requires_grad_(true);
  const at::Tensor loss = HeadCrossEntropySum(hidden, weight, targets, {});
  EXPECT_EQ(loss.item<float>(), 0.0f);
  loss.backward();
  EXPECT_EQ(hidden.grad().abs().max().item<float>(), 0.0f);
  EXPECT_EQ(weight.grad().abs().max().item<float>(), 0.0f);
}

// A single place that keeps its previous contents.
class OnePlace final : public GradientSink {
 public:
  explicit OnePlace(bool add) : add_(add) {}
  Place Open(int parameter) override { return {sum.detach(), add_}; }
  at::Tensor sum = at::full({5, 4}, 1e30f);

 private:
  const bool add_;
};

TEST(HeadTest, NoTargetsNoGradientInItsPlace) {
  const at::Tensor targets = at::tensor({-100, -100, -1}, at::kLong);
  for (const bool add : {false, true}) {
    OnePlace place(add);
    at::Tensor hidden = Wave({3, 4}).to(at::kFloat);
    at::Tensor weight = Wave({5, 4}).to(at::kFloat).requires_grad_(true);
    HeadCrossEntropySum(hidden, weight, targets, {}, kLogitsBytes, {&place, 0})
        .backward();
    EXPECT_TRUE(at::equal(place.sum, at::full({5, 4}, add ? 1e30f : 0.0f)));
  }
}

TEST(HeadTest, WithoutGradientsTheLossIsTheSame) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  at::Tensor hidden = Wave({7, 5}).to(at::kFloat).requires_grad_(true);
  const at::Tensor weight = Wave({11, 5}).to(at::kFloat);
  const float wanted =
      HeadCrossEntropySum(hidden, weight, targets, {}).item<float>();
  at::AutoGradMode no_gradients(false);
  const at::Tensor loss = HeadCrossEntropySum(hidden, weight, targets, {}, 88);
  EXPECT_FALSE(loss.requires_grad());
  EXPECT_NEAR(loss.item<float>(), wanted, 1e-5);
  const at::Tensor twice = HeadCrossEntropySum(hidden, weight, targets, {}, 88,
                                               {}, at::full({7}, 2.0f));
  EXPECT_NEAR(twice.item<float>(), 2 * wanted, 2e-5);
}

TEST(HeadTest, TargetOutsideTheVocabularyIsAnError) {
  at::Tensor logits = Wave({1, 4}).to(at::kFloat);
  EXPECT_ANY_THROW(CrossEntropySum(logits, at::tensor({4}, at::kLong), false));
}

}  // namespace
}  // namespace capstan::kernels
