// SPDX-License-Identifier: Apache-2.0
//
// Label smoothing, compared with ATen's in float64, and noise on embeddings.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/loss/embedding_noise.h"
#include "kernels/loss/token_loss.h"
#include "kernels/loss/tokens.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr double kSmoothing = 0.1, kCap = 2.0;

at::Tensor PlainLoss(at::Tensor logits, const at::Tensor& targets,
                     const at::Tensor& row_weights, bool capped) {
  if (capped) logits = kCap * at::tanh(logits / kCap);
  const at::Tensor losses =
      at::cross_entropy_loss(logits, targets.clamp_min(0), /*weight=*/{},
                             /*reduction=*/0, /*ignore_index=*/-100, kSmoothing)
          .masked_fill(targets < 0, 0.0);
  return row_weights.defined() ? (losses * row_weights.to(losses.dtype())).sum()
                               : losses.sum();
}

// All rows have a target, one doesn't, most don't: rows are left out.
const std::vector<std::vector<int64_t>> kTargets = {
    {3, 1, 0, 10, 10, 2, 7, 4, 9},
    {3, 1, 0, 10, 10, -100, 7, 4, 9},
    {-1, 1, -1, 10, -100, -100, 7, 4, -1}};

TEST(SmoothingTest, HeadsMatchDoublePrecision) {
  const at::Tensor weights =
      at::tensor({0.5f, 2.0f, 0.0f, 1.25f, 3.0f, 4.0f, 1.0f, 0.25f, 0.75f});
  for (const std::vector<int64_t>& list : kTargets) {
    const at::Tensor targets = at::tensor(list, at::kLong);
    for (const int64_t rows : {9, 4, 1}) {
      for (const bool capped : {false, true}) {
        for (const at::Tensor& row_weights : {at::Tensor(), weights}) {
          SCOPED_TRACE(testing::Message()
                       << list << " in pieces of " << rows
                       << (capped ? " capped" : "")
                       << (row_weights.defined() ? " weighted" : ""));
          ExpectSame(
              [&](const Tensors& in) {
                return HeadCrossEntropySum(
                    in[0], in[1], targets, {},
                    rows * 11 * in[1].element_size() * (capped ? 3 : 1), {},
                    row_weights, capped ? kCap : 0.0, kSmoothing);
              },
              [&](const Tensors& in) {
                return PlainLoss(at::linear(in[0], in[1]), targets, row_weights,
                                 capped);
              },
              {Wave({9, 5}), Wave({11, 5}, 3.0)});
        }
      }
    }
  }
}

TEST(SmoothingTest, TiedHeadsMatchDoublePrecision) {
  const at::Tensor targets = at::tensor(kTargets[2], at::kLong);
  const at::Tensor tokens = at::tensor({0, 3, 3, 10, 2, 3, 0, 1, 1}, at::kLong);
  for (const int64_t rows : {9, 2}) {
    ExpectSame(
        [&](const Tensors& in) {
          const auto tied = c10::make_intrusive<HeadGradient>();
          return HeadCrossEntropySum(
              Embedding(in[0], tokens, tied) * in[1], in[0], targets, tied,
              rows * 11 * in[0].element_size(), {}, {}, 0.0, kSmoothing);
        },
        [&](const Tensors& in) {
          return PlainLoss(
              at::linear(at::embedding(in[0], tokens) * in[1], in[0]), targets,
              {}, false);
        },
        {Wave({11, 5}, 2.0), Wave({5})});
  }
}

// Of 16 bits, too, each gradient is the exact one, rounded once.
TEST(SmoothingTest, GradientsAreRoundedOnce) {
  constexpr int64_t kRows = 5, kVocab = 3001;
  const at::Tensor targets = at::tensor({7, -1, 0, 3000, 7}, at::kLong);
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(type));
    const double factor = type == at::kHalf ? 32768.0 : 1.0;
    at::Tensor logits = Wave({kRows, kVocab}, 4.0).to(type);
    at::Tensor x = logits.to(at::kDouble).set_requires_grad(true);
    const at::Tensor wanted = PlainLoss(x, targets, {}, false);
    wanted.backward();
    const at::Tensor exact = x.grad() * factor;
    at::Tensor alone = logits.clone();
    const at::Tensor sum =
        CrossEntropySum(logits, targets, true, factor, {}, kSmoothing);
    EXPECT_NEAR(sum.item<double>(), wanted.item<double>(), 1e-4);
    EXPECT_TRUE(at::equal(
        sum, CrossEntropySum(alone, targets, false, 1.0, {}, kSmoothing)));
    // Half a unit in the last place, and float32's own errors.
    const double unit = type == at::kBFloat16 ? std::ldexp(1.0, -8)
                        : type == at::kHalf   ? std::ldexp(1.0, -11)
                                              : 0.0;
    const at::Tensor error = (logits.to(at::kDouble) - exact).abs();
    const at::Tensor bound =
        exact.abs() * (unit * 1.01) +
        exact.abs().add(factor * kSmoothing / kVocab) * 4e-6;
    EXPECT_TRUE(error.le(bound).all().item<bool>())
        << (error / bound).max().item<double>();
  }
}

// float64 has no kernel of ours.
TEST(SmoothingTest, ComposedOfOperators) {
  const at::Tensor targets = at::tensor(kTargets[1], at::kLong);
  at::Tensor logits = Wave({9, 11}, 3.0);
  at::Tensor x = logits.clone().set_requires_grad(true);
  const at::Tensor wanted = PlainLoss(x, targets, {}, false);
  wanted.backward();
  const at::Tensor sum =
      CrossEntropySum(logits, targets, true, 1.0, {}, kSmoothing);
  EXPECT_NEAR(sum.item<double>(), wanted.item<double>(), 1e-5);
  EXPECT_LT(Difference(logits, x.grad()), 1e-6);
}

at::Tensor NoiseOn(const EmbeddingNoise& noise, at::IntArrayRef shape,
                   at::ScalarType type = at::kFloat) {
  at::Tensor x = at::zeros(shape, type);
  AddNoise(noise, x);
  return x;
}

EmbeddingNoise NoiseOf(std::vector<int64_t> samples, std::vector<float> size,
                       int64_t first = 0) {
  return {77, at::tensor(samples, at::kLong), at::tensor(size), first};
}

TEST(NoiseTest, IsUniformInItsSize) {
  const at::Tensor x = NoiseOn(NoiseOf({5, 9}, {0.5f, 2.0f}), {2000, 33});
  for (const auto& [half, size] : {std::make_pair(0, 0.5), {1, 2.0}}) {
    const at::Tensor of = x.narrow(0, half * 1000, 1000).to(at::kDouble) / size;
    EXPECT_LE(of.abs().max().item<double>(), 1.0);
    EXPECT_GT(of.abs().max().item<double>(), 0.999);
    EXPECT_NEAR(of.mean().item<double>(), 0.0, 0.01);
    EXPECT_NEAR(of.square().mean().item<double>(), 1.0 / 3.0, 0.01);
    EXPECT_NEAR(
        (of.narrow(0, 1, 999) * of.narrow(0, 0, 999)).mean().item<double>(),
        0.0, 0.01);
  }
}

// Whatever else is in the batch, how rows are padded and divided.
TEST(NoiseTest, DependsOnSampleAndPlaceAlone) {
  const at::Tensor both = NoiseOn(NoiseOf({5, 9}, {1, 1}), {14, 6});
  const at::Tensor second = NoiseOn(NoiseOf({9}, {1}), {7, 6});
  EXPECT_TRUE(at::equal(both.narrow(0, 7, 7), second));
  EXPECT_FALSE(at::equal(both.narrow(0, 0, 7), second));
  EXPECT_TRUE(at::equal(NoiseOn(NoiseOf({9}, {1}), {9, 6}).narrow(0, 0, 7),
                        second));  // padded
  EXPECT_TRUE(at::equal(NoiseOn(NoiseOf({9}, {1}, 4), {3, 6}),
                        second.narrow(0, 4, 3)));  // a part of the row
  EmbeddingNoise other = NoiseOf({9}, {1});
  other.key = 78;
  EXPECT_FALSE(at::equal(NoiseOn(other, {7, 6}), second));
}

TEST(NoiseTest, AddsToWhatIsThereInAnyType) {
  const at::Tensor noise = NoiseOn(NoiseOf({3}, {0.25f}), {4, 10});
  for (const auto type : {at::kDouble, at::kBFloat16, at::kHalf}) {
    at::Tensor x = at::full({4, 10}, 1.0, type);
    AddNoise(NoiseOf({3}, {0.25f}), x);
    EXPECT_LT(Difference(x, noise + 1.0), 0.005);
  }
}

TEST(NoiseTest, SizeCountsTokensUpToTheLastTarget) {
  // Whole, padded, an answer's end, none.
  const at::Tensor targets = at::tensor(
      {1, 2, 3, -1, 1, 2, -1, -1, -1, 5, -1, -1, -1, -1, -1, -1}, at::kLong);
  const at::Tensor size = NoiseSize(targets.view({4, 4}), 5.0, 16);
  const std::vector<int64_t> lengths = {4, 3, 3, 1};
  for (int row = 0; row < 4; ++row) {
    EXPECT_FLOAT_EQ(size[row].item<float>(),
                    5.0 / std::sqrt(lengths[row] * 16.0));
  }
}

}  // namespace
}  // namespace capstan::kernels
