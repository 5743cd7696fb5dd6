// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/mixed_linear.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "kernels/layers/linear.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

// `weight` as int8.
Weight Int8(const at::Tensor& weight) {
  at::Tensor values = at::empty(weight.sizes(), at::kChar);
  at::Tensor scales = at::empty({weight.size(0)}, at::kFloat);
  for (int64_t r = 0; r < weight.size(0); ++r) {
    scales.mutable_data_ptr<float>()[r] = QuantizeInt8(
        weight.const_data_ptr<float>() + r * weight.size(1), weight.size(1),
        values.mutable_data_ptr<int8_t>() + r * weight.size(1));
  }
  return Weight::Scaled(values, scales);
}

// Wave is float64.
at::Tensor Floats(at::IntArrayRef shape, double size) {
  return Wave(shape, size).to(at::kFloat);
}

double Distance(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

TEST(MixedLinearTest, MultipliesWhatAMatrixStandsFor) {
  const at::Tensor w = Floats({50, 96}, 1.0);
  const Weight weights[] = {w.to(at::kBFloat16), w.to(at::kHalf), Int8(w)};
  for (const int64_t rows : {1, 3, 32, 33, 70, 1030}) {
    const at::Tensor x = Floats({rows, 96}, 2.0);
    for (const Weight& weight : weights) {
      ASSERT_TRUE(IsMixed(x, weight));
      at::Tensor values = weight.tensor.to(at::kFloat);
      if (weight.scales.defined()) values.mul_(weight.scales.unsqueeze(1));
      const bool rounds =
          weight.tensor.scalar_type() == at::kBFloat16 && RoundsToBf16();
      const at::Tensor wanted =
          at::linear(rounds ? x.to(at::kBFloat16).to(at::kFloat) : x, values);
      at::Tensor y = at::empty({rows, 50}, at::kFloat);
      LinearInto(y, x, weight);
      EXPECT_LT(Distance(y, wanted), 1e-4) << rows;
      LinearInto(y, x, weight, /*beta=*/1.0);
      EXPECT_LT(Distance(y, 2.0 * wanted), 2e-4) << rows;
      // Some rows of it, into columns of a wider matrix.
      const at::Tensor wide = at::ones({rows, 50}, at::kFloat);
      LinearInto(wide.narrow(1, 10, 20), x, weight.Rows(5, 20));
      EXPECT_LT(Distance(wide.narrow(1, 10, 20), wanted.narrow(1, 5, 20)),
                1e-4);
      EXPECT_EQ(wide[rows - 1][30].item<float>(), 1.0f);
    }
  }
}

TEST(MixedLinearTest, Int8IsWithinItsBound) {
  const at::Tensor w = Floats({40, 64}, 1.0), x = Floats({2, 64}, 2.0);
  at::Tensor y = at::empty({2, 40}, at::kFloat);
  LinearInto(y, x, Int8(w));
  // Half of each row's scale, for each value.
  const at::Tensor bound = at::linear(
      x.abs(), (w.abs().amax({1}, true) / 254.0).expand_as(w) + 1e-6);
  EXPECT_TRUE(((y - at::linear(x, w)).abs() <= bound).all().item<bool>());
}

TEST(MixedLinearTest, RowsOfAnEmbedding) {
  const at::Tensor table = Floats({9, 20}, 3.0);
  const at::Tensor tokens = at::tensor({3, 0, 8}, at::kLong);
  EXPECT_TRUE(StoredRows(table, tokens).equal(table.index_select(0, tokens)));
  const at::Tensor half = table.to(at::kBFloat16);
  EXPECT_TRUE(StoredRows(half, tokens)
                  .equal(half.index_select(0, tokens).to(at::kFloat)));
  const at::Tensor unknown = at::tensor({9}, at::kLong);
  EXPECT_ANY_THROW(StoredRows(table, unknown));
}

}  // namespace
}  // namespace capstan::kernels
