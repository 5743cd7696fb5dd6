// SPDX-License-Identifier: Apache-2.0
//
// The precision of 16-bit types at the two ends of a model; head_test.cc tests
// the formulas.
#include "kernels/loss/token_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace capstan::kernels {
namespace {

constexpr int64_t kRows = 600;
constexpr int64_t kVocab = 12;
constexpr int64_t kHidden = 8;

// -1/2, -1/4, .. 1/2: every logit made of them is exact in bfloat16 too.
at::Tensor Quarters(int64_t rows) {
  static int n = 0;
  std::vector<float> x(rows * kHidden);
  for (float& v : x) v = 0.25f * std::round(2.0 * std::sin(1.618 * ++n));
  return at::tensor(x, at::kFloat).view({rows, kHidden});
}

struct Head {
  at::Tensor hidden;
  at::Tensor weight;
};

// Token 0 is almost certain everywhere, others have about 1e-6.
Head SureHead() {
  Head head = {Quarters(kRows), Quarters(kVocab)};
  head.hidden.select(1, 0).fill_(4.0);
  head.weight.select(1, 0).zero_();
  head.weight.select(0, 0).zero_();
  head.weight[0][0] = 3.5;
  return head;
}

// The gradients of `scale` times the loss, for rows whose target is 0.
Head Gradients(const Head& head, at::ScalarType dtype, int64_t piece,
               double scale, bool tied = false,
               const at::Tensor& row_weights = {}) {
  at::Tensor hidden = head.hidden.to(dtype).clone().requires_grad_(true);
  at::Tensor weight = head.weight.to(dtype).clone().requires_grad_(true);
  const at::Tensor targets = at::zeros({kRows}, at::kLong);
  TiedGradient gradient;
  at::Tensor x = hidden;
  if (tied) {
    gradient = c10::make_intrusive<HeadGradient>();
    x = x + 0.0 * Embedding(weight, targets, gradient);
  }
  const at::Tensor sum = HeadCrossEntropySum(
      x, weight, targets, gradient, piece * kVocab * weight.element_size(), {},
      row_weights);
  sum.backward(at::full({}, scale, at::kFloat));
  EXPECT_EQ(hidden.grad().scalar_type(), dtype);
  EXPECT_EQ(weight.grad().scalar_type(), dtype);
  return {hidden.grad().to(at::kFloat), weight.grad().to(at::kFloat)};
}

// Row by row, so that large ones don't hide small ones.
void ExpectRowsNear(const at::Tensor& got, const at::Tensor& wanted,
                    double relative) {
  for (int64_t r = 0; r < wanted.size(0); ++r) {
    const double size = wanted[r].norm().item<double>();
    ASSERT_GT(size, 0.0);
    EXPECT_LT((got[r] - wanted[r]).norm().item<double>() / size, relative)
        << "row " << r;
  }
}

TEST(TokenLossTest, SmallGradientsUnderALossScale) {
  const Head head = SureHead();
  const Head wanted = Gradients(head, at::kFloat, kRows, 65536.0);
  // So small that a 16-bit type without the scale loses most of them.
  EXPECT_LT(wanted.hidden.abs().max().item<double>() / 65536.0, 1e-4);
  for (int64_t piece : {int64_t{1}, int64_t{250}, kRows}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(testing::Message() << "pieces of " << piece << tied);
      // One rounding of each logit's gradient, and one of each result.
      const Head f16 = Gradients(head, at::kHalf, piece, 65536.0, tied);
      ExpectRowsNear(f16.hidden, wanted.hidden, 1e-3);
      ExpectRowsNear(f16.weight, wanted.weight, 1e-3);
      const Head bf16 = Gradients(head, at::kBFloat16, piece, 65536.0, tied);
      ExpectRowsNear(bf16.hidden, wanted.hidden, 8e-3);
      ExpectRowsNear(bf16.weight, wanted.weight, 8e-3);
    }
  }
}

// Masked diffusion's 1 / p goes up to 1000, means have a fraction: float16 must
// neither overflow nor underflow. Powers of 2, so that float32's rounding of
// softmax - 1 is always the same.
TEST(TokenLossTest, LargeAndSmallWeights) {
  const Head head = SureHead();
  at::Tensor shape = at::full({kRows}, 1.0f);  // between 1/4 and 1
  for (int64_t r = 0; r < kRows; ++r) shape[r] = 1.0 / (1 << r % 3);
  for (const double size : {1024.0, 0x1p-20}) {
    const at::Tensor row_weights = shape * size;
    const double scale = 65536.0 / size;
    const Head wanted =
        Gradients(head, at::kFloat, kRows, scale, false, row_weights);
    for (int64_t piece : {int64_t{250}, kRows}) {
      for (const bool tied : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << size << " in pieces of " << piece << tied);
        const Head f16 =
            Gradients(head, at::kHalf, piece, scale, tied, row_weights);
        ExpectRowsNear(f16.hidden, wanted.hidden, 1e-3);
        ExpectRowsNear(f16.weight, wanted.weight, 1e-3);
        const Head bf16 =
            Gradients(head, at::kBFloat16, piece, scale, tied, row_weights);
        ExpectRowsNear(bf16.hidden, wanted.hidden, 8e-3);
        ExpectRowsNear(bf16.weight, wanted.weight, 8e-3);
      }
    }
  }
}

TEST(TokenLossTest, AllWeightsZero) {
  const Head got =
      Gradients(SureHead(), at::kHalf, 250, 1.0, false, at::zeros({kRows}));
  EXPECT_EQ(got.hidden.abs().max().item<float>(), 0.0f);
  EXPECT_EQ(got.weight.abs().max().item<float>(), 0.0f);
}

TEST(TokenLossTest, OverflowOfTheScaledGradientShows) {
  const Head got = Gradients(SureHead(), at::kHalf, 250, 1e12);
  EXPECT_FALSE(got.hidden.isfinite().all().item<bool>());
  EXPECT_FALSE(got.weight.isfinite().all().item<bool>());
}

TEST(TokenLossTest, EmbeddingOfARepeatedToken) {
  constexpr int64_t kRepeats = 1000;
  const at::Tensor tokens = at::full({kRepeats}, 3, at::kLong);
  const at::Tensor ramp = at::tensor({0.5f, 1.0f, -1.375f, 0.0078125f});
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor weight = at::zeros({5, 4}, dtype).requires_grad_(true);
    Embedding(weight, tokens, {})
        .backward(ramp.to(dtype).expand({kRepeats, 4}).contiguous());
    at::Tensor wanted = at::zeros({5, 4});
    wanted[3] = ramp * kRepeats;
    EXPECT_TRUE(weight.grad().equal(wanted.to(dtype))) << weight.grad();
  }
}

}  // namespace
}  // namespace capstan::kernels
