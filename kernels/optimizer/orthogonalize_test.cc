// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/orthogonalize.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/diag_embed.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "base/random.h"

namespace capstan::kernels {
namespace {

at::Tensor Random(at::IntArrayRef shape) {
  const at::Tensor t = at::empty(shape);
  FillNormal(7, 0, t.numel(), 0.0f, 1.0f, t.mutable_data_ptr<float>());
  return t;
}

// What the iterations make of each singular value, in doubles.
at::Tensor Oracle(const NewtonSchulz& options, const at::Tensor& matrix) {
  const at::Tensor x = matrix.to(at::kDouble);
  const auto [u, s, v] = at::linalg_svd(x, /*full_matrices=*/false);
  at::Tensor t = s / (s.norm() * options.margin).clamp_min(options.epsilon);
  for (const QuinticStep& step : options.steps) {
    t = t * (step.a + t.square() * (step.b + t.square() * step.c));
  }
  return u.matmul(at::diag_embed(t)).matmul(v);
}

double Apart(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

using Shape = std::tuple<int64_t, int64_t>;

class OrthogonalizeTest : public ::testing::TestWithParam<Shape> {
 protected:
  at::Tensor Matrix() const {
    return Random({std::get<0>(GetParam()), std::get<1>(GetParam())});
  }
};

TEST_P(OrthogonalizeTest, IsThePolynomialOfTheSingularValues) {
  for (const bool polar : {false, true}) {
    for (const int steps : {1, 2, 5}) {
      SCOPED_TRACE(steps);
      NewtonSchulz options;
      options.steps = polar ? PolarExpressSteps(steps) : JordanSteps(steps);
      if (polar) options.margin = kPolarMargin;
      const at::Tensor matrix = Matrix();
      const at::Tensor want = Oracle(options, matrix);
      at::Tensor got = matrix.clone();
      Orthogonalize(options, got);
      // Rounding of the smallest singular values grows by the slope at 0.
      EXPECT_LE(Apart(got, want), 1e-4);
      options.dtype = at::kBFloat16;
      got = matrix.clone();
      Orthogonalize(options, got);
      EXPECT_LE(Apart(got, want), 0.1);
    }
  }
}

// 1 is what it's for.
TEST_P(OrthogonalizeTest, SingularValuesAreNearOne) {
  NewtonSchulz options;
  for (const bool polar : {false, true}) {
    options.steps = polar ? PolarExpressSteps(5) : JordanSteps(5);
    options.margin = polar ? kPolarMargin : 1.0;
    at::Tensor got = Matrix();
    Orthogonalize(options, got);
    const at::Tensor s =
        std::get<1>(at::linalg_svd(got, /*full_matrices=*/false));
    EXPECT_LE(s.max().item<float>(), polar ? 1.15 : 1.25);
    // A square matrix may have singular values near 0.
    if (got.size(0) != got.size(1)) {
      EXPECT_GE(s.min().item<float>(), polar ? 0.85 : 0.5);
    }
  }
}

// Each matrix of a stack is its own, and its bits don't depend on its place.
TEST_P(OrthogonalizeTest, OfAStackIsThatOfEach) {
  NewtonSchulz options;
  options.steps = JordanSteps(5);
  const auto [rows, columns] = GetParam();
  const at::Tensor stack = Random({3, rows, columns});
  const at::Tensor memory = at::empty({3 * rows * columns + 1});
  const at::Tensor shifted =
      memory.narrow(0, 1, stack.numel()).view(stack.sizes());
  shifted.copy_(stack);
  Orthogonalize(options, shifted);
  for (int i = 0; i < 3; ++i) {
    at::Tensor one = stack[i].clone();
    Orthogonalize(options, one);
    EXPECT_TRUE(one.equal(shifted[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OrthogonalizeTest,
                         ::testing::Values(Shape{1, 1}, Shape{1, 30},
                                           Shape{33, 33}, Shape{70, 61},
                                           Shape{61, 70}, Shape{200, 64},
                                           Shape{64, 200}, Shape{300, 290},
                                           Shape{170, 500}, Shape{8, 400}));

TEST(OrthogonalizeWaysTest, LongMatricesGoByTheirGramMatrix) {
  EXPECT_FALSE(OnGramMatrix(100, 100, 5));
  EXPECT_TRUE(OnGramMatrix(100, 200, 5));
  EXPECT_TRUE(OnGramMatrix(200, 100, 5));
  EXPECT_FALSE(OnGramMatrix(100, 200, 1));
}

TEST(OrthogonalizeWaysTest, ZerosStayZeros) {
  NewtonSchulz options;
  options.steps = JordanSteps(5);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    options.dtype = dtype;
    at::Tensor zeros = at::zeros({20, 50});
    Orthogonalize(options, zeros);
    EXPECT_EQ(zeros.abs().max().item<float>(), 0.0f);
  }
}

}  // namespace
}  // namespace capstan::kernels
