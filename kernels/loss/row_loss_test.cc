// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/row_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace capstan::kernels {
namespace {

constexpr int64_t kSets = 2, kTexts = 3, kLength = 9;
constexpr int64_t kVocab = 11, kHidden = 6;

at::Tensor Waves(at::IntArrayRef shape, double seed) {
  at::Tensor x = at::zeros(shape, at::kFloat);
  float* const out = x.mutable_data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    out[i] =
        static_cast<float>(std::sin(seed + 1.618 * static_cast<double>(i)));
  }
  return x;
}

// The first set has targets in the later half of each text, the second in all
// of the first text but its end.
at::Tensor Targets() {
  const at::Tensor targets =
      at::full({kSets, kTexts, kLength}, -100, at::kLong);
  for (int64_t b = 0; b < kTexts; ++b) {
    for (int64_t t = 4; t + b < kLength; ++t) {
      targets[0][b][t] = (7 * b + 3 * t) % kVocab;
    }
  }
  for (int64_t t = 0; t + 1 < kLength; ++t) targets[1][0][t] = 3 * t % kVocab;
  return targets;
}

// By composed operators, [kSets, kTexts].
at::Tensor Composed(const at::Tensor& hidden, const at::Tensor& weight,
                    const at::Tensor& targets) {
  const at::Tensor logp = at::log_softmax(at::mm(hidden, weight.t()), 1)
                              .view({1, kTexts, kLength, kVocab})
                              .expand({kSets, kTexts, kLength, kVocab});
  const at::Tensor chosen =
      logp.gather(3, targets.clamp_min(0).unsqueeze(3)).squeeze(3);
  return -(chosen * targets.ge(0)).sum(2);
}

// A loss in which each sum has a weight that depends on the others.
at::Tensor Loss(const at::Tensor& sums) {
  return (sums[0][0] - 0.3 * sums[0][1]).sigmoid() * sums[0][2] +
         0.1 * sums[1][0] * sums[1][0] + 0.0 * sums[1][2];
}

TEST(RowLossTest, SumsAndGradientsAreThoseOfComposedOperators) {
  const at::Tensor targets = Targets();
  const at::Tensor hidden = Waves({kTexts * kLength, kHidden}, 0.1);
  const at::Tensor weight = Waves({kVocab, kHidden}, 0.7);
  const at::Tensor h1 = hidden.clone().requires_grad_(true);
  const at::Tensor w1 = weight.clone().requires_grad_(true);
  const at::Tensor expected = Composed(h1, w1, targets);
  Loss(expected).backward();
  // In one piece and in pieces of two rows.
  for (const int64_t bytes : {kLogitsBytes, 2 * kVocab * int64_t{4}}) {
    const at::Tensor h2 = hidden.clone().requires_grad_(true);
    const at::Tensor w2 = weight.clone().requires_grad_(true);
    const at::Tensor sums =
        HeadCrossEntropyRows(h2, w2, targets, TiedGradient(), bytes);
    ASSERT_EQ(sums.sizes(), at::IntArrayRef({kSets, kTexts}));
    EXPECT_LT((sums - expected).abs().max().item<float>(), 2e-5);
    EXPECT_EQ(sums[1][1].item<float>(), 0.0f);
    Loss(sums).backward();
    EXPECT_LT((h2.grad() - h1.grad()).abs().max().item<float>(), 2e-5);
    EXPECT_LT((w2.grad() - w1.grad()).abs().max().item<float>(), 5e-5);
  }
}

// [rows]; of the first set, divided by `temperature`.
at::Tensor ComposedTokens(const at::Tensor& hidden, const at::Tensor& weight,
                          const at::Tensor& targets, double temperature,
                          at::Tensor* entropy) {
  const at::Tensor logp =
      at::log_softmax(at::mm(hidden, weight.t()) / temperature, 1);
  const at::Tensor valid = targets.ge(0);
  *entropy = -(logp.exp() * logp).sum(1) * valid;
  return logp.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1) * valid;
}

TEST(RowLossTest, TokensAndGradientsAreThoseOfComposedOperators) {
  const at::Tensor targets = Targets()[0].reshape({-1});
  const at::Tensor hidden = Waves({kTexts * kLength, kHidden}, 0.1);
  const at::Tensor weight = Waves({kVocab, kHidden}, 0.7);
  for (const double temperature : {1.0, 0.7}) {
    const at::Tensor h1 = hidden.clone().requires_grad_(true);
    const at::Tensor w1 = weight.clone().requires_grad_(true);
    at::Tensor entropy;
    const at::Tensor expected =
        ComposedTokens(h1, w1, targets, temperature, &entropy);
    const at::Tensor worth = Waves({kTexts * kLength}, 2.0);
    (expected * expected * worth).sum().backward();
    for (const int64_t bytes : {kLogitsBytes, 2 * kVocab * int64_t{4}}) {
      const at::Tensor h2 = hidden.clone().requires_grad_(true);
      const at::Tensor w2 = weight.clone().requires_grad_(true);
      at::Tensor found;
      const at::Tensor logps = HeadTokenLogProbs(
          h2, w2, targets, temperature, &found, TiedGradient(), /*place=*/{},
          /*softcap=*/0.0, bytes);
      EXPECT_LT((logps - expected).abs().max().item<float>(), 5e-6);
      EXPECT_LT((found - entropy).abs().max().item<float>(), 5e-6);
      EXPECT_FALSE(found.requires_grad());
      (logps * logps * worth).sum().backward();
      EXPECT_LT((h2.grad() - h1.grad()).abs().max().item<float>(), 5e-5);
      EXPECT_LT((w2.grad() - w1.grad()).abs().max().item<float>(), 1e-4);
      // The same bits without gradients, and without the entropy; with blocks
      // of other sizes products may be rounded otherwise.
      const at::NoGradGuard none;
      EXPECT_TRUE(HeadTokenLogProbs(h2, w2, targets, temperature, nullptr,
                                    TiedGradient(), /*place=*/{},
                                    /*softcap=*/0.0, bytes)
                      .equal(logps));
    }
  }
}

TEST(RowLossTest, WithoutGradientsTheSumsAreTheSame) {
  const at::Tensor hidden = Waves({kTexts * kLength, kHidden}, 0.1);
  const at::Tensor weight = Waves({kVocab, kHidden}, 0.7);
  const at::Tensor with = HeadCrossEntropyRows(
      hidden, weight.clone().requires_grad_(true), Targets(), TiedGradient());
  const at::NoGradGuard no_gradients;
  const at::Tensor without =
      HeadCrossEntropyRows(hidden, weight, Targets(), TiedGradient());
  EXPECT_TRUE(with.detach().equal(without));
}

TEST(RowLossTest, AFrozenWeightGetsNoGradient) {
  const at::Tensor hidden =
      Waves({kTexts * kLength, kHidden}, 0.1).requires_grad_(true);
  const at::Tensor weight = Waves({kVocab, kHidden}, 0.7);
  Loss(HeadCrossEntropyRows(hidden, weight, Targets(), TiedGradient()))
      .backward();
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_GT(hidden.grad().abs().sum().item<float>(), 0.0f);
}

TEST(RowLossTest, ATiedWeightGetsBothGradientsAtOnce) {
  const at::Tensor targets = Targets();
  const at::Tensor ids = Targets()[1].reshape({-1}).clamp_min(0);
  const at::Tensor weight = Waves({kVocab, kHidden}, 0.7);
  const at::Tensor w1 = weight.clone().requires_grad_(true);
  Loss(Composed(w1.index_select(0, ids).sin(), w1, targets)).backward();
  const at::Tensor w2 = weight.clone().requires_grad_(true);
  const TiedGradient tied = c10::make_intrusive<HeadGradient>();
  int times = 0;
  w2.register_hook([&times](const at::Tensor&) { ++times; });
  Loss(HeadCrossEntropyRows(Embedding(w2, ids, tied).sin(), w2, targets, tied))
      .backward();
  EXPECT_LT((w2.grad() - w1.grad()).abs().max().item<float>(), 5e-5);
  EXPECT_EQ(times, 1);
}

TEST(RowLossTest, SixteenBitGradientsAreRoundedOnce) {
  const at::Tensor targets = Targets();
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor hidden = Waves({kTexts * kLength, kHidden}, 0.1).to(dtype);
    const at::Tensor weight = Waves({kVocab, kHidden}, 0.7).to(dtype);
    const at::Tensor h1 = hidden.to(at::kFloat).requires_grad_(true);
    const at::Tensor w1 = weight.to(at::kFloat).requires_grad_(true);
    Loss(Composed(h1, w1, targets)).backward();
    const at::Tensor h2 = hidden.clone().requires_grad_(true);
    const at::Tensor w2 = weight.clone().requires_grad_(true);
    Loss(HeadCrossEntropyRows(h2, w2, targets, TiedGradient())).backward();
    const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
      return ((a.to(at::kFloat) - b).abs().max() / b.abs().max()).item<float>();
    };
    // The logits are rounded to 16 bits, too.
    EXPECT_LT(apart(h2.grad(), h1.grad()), 0.03f) << dtype;
    EXPECT_LT(apart(w2.grad(), w1.grad()), 0.03f) << dtype;
  }
}

}  // namespace
}  // namespace capstan::kernels
