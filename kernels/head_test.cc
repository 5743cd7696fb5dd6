// SPDX-License-Identifier: Apache-2.0
//
// The embedding, and the head with its loss, against plain formulas; what
// 16-bit types must not lose there is in token_loss_test.cc.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cross_entropy.h"
#include "kernels/embedding_gradient.h"
#include "kernels/rms_norm.h"
#include "kernels/testing.h"
#include "kernels/token_loss.h"

namespace capstan {
namespace kernels {
namespace {

at::Tensor PlainLoss(const at::Tensor& hidden, const at::Tensor& weight,
                     const at::Tensor& targets) {
  const at::Tensor logs = at::log_softmax(at::linear(hidden, weight), -1);
  const at::Tensor picked =
      logs.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
  return -(picked * targets.ge(0).to(picked.dtype())).sum();
}

const std::vector<int64_t> kTargets = {3, -100, 0, 10, 10, -100, 7};

TEST(HeadTest, HeadInPiecesOfRows) {
  const at::Tensor targets = at::tensor(kTargets, at::kLong);
  // All rows at once; two, three and seven pieces.
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
      // index_add_ is made in double, of what the function is given.
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
}

TEST(HeadTest, TargetOutsideTheVocabularyIsAnError) {
  at::Tensor logits = Wave({1, 4}).to(at::kFloat);
  EXPECT_ANY_THROW(CrossEntropySum(logits, at::tensor({4}, at::kLong), false));
}

}  // namespace
}  // namespace kernels
}  // namespace capstan
