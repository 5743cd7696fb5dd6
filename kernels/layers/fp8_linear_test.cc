// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/fp8_linear.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/context/wide_gradient_sink.h"
#include "kernels/layers/gpu_path_for_test.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/transformer_block.h"
#include "kernels/quant/fp8.h"
#include "kernels/quant/packed_linear.h"
#include "kernels/testing.h"

namespace capstan::kernels {
namespace {

constexpr Fp8Scaling kBoth[] = {Fp8Scaling::kTensor, Fp8Scaling::kRow};

// The nearest number of `bits` of mantissa whose exponents begin at `least`,
// which subnormal ones share; ties go to even.
double Nearest(double x, int bits, int least) {
  if (x == 0.0) return x;
  const int exponent = std::max(std::ilogb(x), least);
  const double unit = std::ldexp(1.0, exponent - bits);
  return std::nearbyint(x / unit) * unit;
}
double NearestOf(double x, at::ScalarType type) {
  return type == at::kFloat8_e4m3fn ? Nearest(x, 3, -6) : Nearest(x, 2, -14);
}

at::Tensor Normal(at::IntArrayRef shape, double size = 1.0) {
  return at::randn(shape).mul_(size).to(at::kBFloat16);
}

// What a matrix is after the cast, in float64, of plain loops.
at::Tensor Reference(const at::Tensor& x, at::ScalarType type,
                     Fp8Scaling scaling) {
  const at::Tensor wide = x.to(at::kDouble).contiguous();
  at::Tensor made = at::empty(wide.sizes(), at::kDouble);
  const double most = type == at::kFloat8_e4m3fn ? 448.0 : 57344.0;
  const double of_all = wide.abs().max().item<double>();
  for (int64_t r = 0; r < wide.size(0); ++r) {
    const double amax = scaling == Fp8Scaling::kTensor
                            ? of_all
                            : wide[r].abs().max().item<double>();
    // As float32 has it, so that ties are the same.
    const float scale =
        std::max(static_cast<float>(amax), 1e-12f) / static_cast<float>(most);
    const float factor = 1.0f / scale;
    for (int64_t c = 0; c < wide.size(1); ++c) {
      const float scaled =
          static_cast<float>(wide[r][c].item<double>()) * factor;
      made[r][c] = NearestOf(scaled, type) * static_cast<double>(scale);
    }
  }
  return made;
}

at::Tensor ValuesOf(const Fp8Factor& factor) {
  return factor.values.to(at::kDouble) * factor.scale.to(at::kDouble);
}

Weight InFp8(const at::Tensor& dense, Fp8Scaling scaling) {
  Weight weight = dense;
  weight.fp8 = scaling;
  return weight;
}

TEST(Fp8LinearTest, CastsRoundToNearestEvenOfTheirScale) {
  at::manual_seed(3);
  // Magnitudes from far below the least to outliers.
  const at::Tensor x =
      (Normal({32, 48}) * at::pow(10.0, at::linspace(-7, 3, 48)))
          .to(at::kBFloat16);
  for (const Fp8Scaling scaling : kBoth) {
    for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      for (const at::Tensor& matrix : {x, x.t()}) {
        const Fp8Factor made =
            CastToFp8(matrix, type, scaling, Fp8Underflow::kInputs);
        ASSERT_EQ(made.values.sizes(), matrix.sizes());
        EXPECT_EQ(made.scale.size(0),
                  scaling == Fp8Scaling::kRow ? matrix.size(0) : 1);
        EXPECT_TRUE(ValuesOf(made).equal(Reference(matrix, type, scaling)));
      }
    }
  }
}

TEST(Fp8LinearTest, TheGreatestIsTheGreatestOfTheTypeAndNothingOverflows) {
  at::manual_seed(4);
  for (int i = 0; i < 200; ++i) {
    const at::Tensor x = Normal({1, 16}, std::pow(10.0, i % 30 - 15));
    for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
      const Fp8Factor made =
          CastToFp8(x, type, Fp8Scaling::kTensor, Fp8Underflow::kInputs);
      const double most = type == at::kFloat8_e4m3fn ? 448.0 : 57344.0;
      const double got = made.values.abs().max().item<double>();
      // Amax is at least 1e-12.
      if (x.abs().max().item<double>() > 1e-12) {
        EXPECT_EQ(got, most) << x;
      }
      EXPECT_LE(got, most);
    }
  }
  const auto cast = [](const at::Tensor& x) {
    return CastToFp8(x.to(at::kBFloat16), at::kFloat8_e4m3fn,
                     Fp8Scaling::kTensor, Fp8Underflow::kInputs);
  };
  EXPECT_TRUE(cast(at::zeros({2, 16})).values.eq(0.0).all().item<bool>());
  // What isn't finite stays seen.
  at::Tensor infinite = at::ones({2, 16});
  infinite[1][3] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(cast(infinite).values[1][3].isnan().item<bool>());
}

// The three products, whose results are rounded to bfloat16 (by up to 2^-8 of
// each) and whose float32 sums of at most 96 products lose less.
TEST(Fp8LinearTest, ProductsAreThoseOfTheCastFactors) {
  at::manual_seed(5);
  const int64_t out = 64, in = 96, rows = 21;
  const at::Tensor w = Normal({out, in}, 0.1);
  const at::Tensor x = Normal({rows, in}), dy = Normal({rows, out}, 1e-6);
  for (const Fp8Scaling s : kBoth) {
    const auto near = [](const at::Tensor& got, const at::Tensor& a,
                         const at::Tensor& b) {
      const at::Tensor wanted = at::mm(a, b.t());
      const at::Tensor size = at::mm(a.abs(), b.abs().t());
      const at::Tensor bound = wanted.abs() * 0x1p-8 + size * 0x1p-20;
      return ((got.to(at::kDouble) - wanted).abs() <= bound).all().item<bool>();
    };
    const Weight weight = InFp8(w, s);
    const auto values = [s](const at::Tensor& t) {
      return Reference(t, at::kFloat8_e4m3fn, s);
    };
    const auto gradients = [s](const at::Tensor& t) {
      return Reference(t, at::kFloat8_e5m2, s);
    };
    const at::Tensor y = at::empty({rows, out}, at::kBFloat16);
    LinearInto(y, x, weight);
    EXPECT_TRUE(near(y, values(x), values(w)));
    const at::Tensor dx = at::empty({rows, in}, at::kBFloat16);
    LinearBackwardInto(dx, dy, weight);
    EXPECT_TRUE(near(dx, gradients(dy), values(w.t())));
    const at::Tensor dw = at::empty({out, in}, at::kFloat);
    WeightGradientInto(dw, dy, x, weight, /*beta=*/0.0);
    EXPECT_TRUE(near(dw, gradients(dy.t()), values(x.t())));

    // What is added is the same numbers.
    at::Tensor sum = at::ones({out, in}, at::kFloat);
    WeightGradientInto(sum, dy, x, weight, /*beta=*/1.0);
    EXPECT_TRUE(sum.equal(dw + 1.0));
    at::Tensor twice = y.clone();
    LinearInto(twice, x, weight, /*beta=*/1.0);
    EXPECT_TRUE(twice.equal(y * 2.0));
    // Rows of a matrix are a matrix of their own.
    const at::Tensor part = at::empty({rows, 16}, at::kBFloat16);
    LinearInto(part, x, weight.Rows(32, 16));
    EXPECT_TRUE(near(part, values(x), values(w.narrow(0, 32, 16))));
  }
}

// at::_scaled_mm on CPUs, which has one scale for each factor, multiplies
// scaled float32 numbers: each of its products is rounded, which moves a sum by
// up to 2^-23 of the sum of magnitudes, and the result is rounded once, too.
TEST(Fp8LinearTest, IsNearLibTorchsProduct) {
  at::manual_seed(6);
  const at::Tensor x = Normal({40, 64}), w = Normal({48, 64});
  for (const at::ScalarType type : {at::kFloat8_e4m3fn, at::kFloat8_e5m2}) {
    const Fp8Factor a =
        CastToFp8(x, type, Fp8Scaling::kTensor, Fp8Underflow::kInputs);
    const Fp8Factor b = CastToFp8(w, at::kFloat8_e4m3fn, Fp8Scaling::kTensor,
                                  Fp8Underflow::kWeights);
    const at::Tensor got = Fp8Product(a, b, /*fast=*/false);
    const at::Tensor wanted =
        at::_scaled_mm(a.values.to(type), b.values.to(at::kFloat8_e4m3fn).t(),
                       a.scale, b.scale, {}, {}, at::kBFloat16);
    const at::Tensor size = at::mm(ValuesOf(a).abs(), ValuesOf(b).abs().t());
    const at::Tensor bound =
        wanted.to(at::kDouble).abs() * 0x1p-7 + size * 0x1p-20;
    EXPECT_TRUE(((got.to(at::kDouble) - wanted.to(at::kDouble)).abs() <= bound)
                    .all()
                    .item<bool>());
  }
}

TEST(Fp8LinearTest, ScalesOfRowsKeepWhatAnOutlierWouldDrown) {
  at::manual_seed(7);
  at::Tensor x = Normal({32, 32});
  x[0] = 1e6;
  const auto error = [&](Fp8Scaling scaling) {
    const at::Tensor values = ValuesOf(
        CastToFp8(x, at::kFloat8_e4m3fn, scaling, Fp8Underflow::kInputs));
    return (values - x.to(at::kDouble)).narrow(0, 1, 31).abs().max();
  };
  EXPECT_LT(error(Fp8Scaling::kRow).item<double>(), 0.2);
  EXPECT_GT(error(Fp8Scaling::kTensor).item<double>(), 1.0);
}

TEST(Fp8LinearTest, OnlyOfMatricesOfMultiplesOf16) {
  const auto uses = [](int64_t out, int64_t in) {
    return UsesFp8(InFp8(Normal({out, in}), Fp8Scaling::kRow));
  };
  EXPECT_TRUE(uses(16, 32));
  EXPECT_FALSE(uses(24, 32));
  EXPECT_FALSE(uses(16, 40));
  EXPECT_FALSE(UsesFp8(Weight(Normal({16, 16}))));
}

// W in 8 bits already, as kernels/quant/fp8.h has it.
Weight Stored(const at::Tensor& dense, Fp8Scaling scaling) {
  const at::Tensor wide = dense.to(at::kFloat).contiguous();
  const Fp8Layout layout(wide.size(0), wide.size(1));
  const at::Tensor bytes = at::zeros({layout.bytes}, at::kByte);
  auto* const out = bytes.mutable_data_ptr<uint8_t>();
  for (int64_t r = 0; r < layout.rows; ++r) {
    const float scale =
        QuantizeFp8(wide.const_data_ptr<float>() + r * layout.columns,
                    layout.columns, out + r * layout.columns);
    std::memcpy(out + layout.scales + 4 * r, &scale, 4);
  }
  Weight weight(bytes, WeightFormat::kFp8, layout.rows, layout.columns);
  weight.fp8 = scaling;
  return weight;
}

TEST(Fp8LinearTest, AStoredMatrixIsAFactorAsItIs) {
  at::manual_seed(9);
  const at::Tensor w = Normal({48, 64}, 0.1), x = Normal({6, 64});
  const at::Tensor dy = Normal({6, 48});
  const at::Tensor y = at::empty({6, 48}, at::kBFloat16);
  const at::Tensor same = at::empty({6, 48}, at::kBFloat16);
  LinearInto(y, x, Stored(w, Fp8Scaling::kRow));
  LinearInto(same, x, InFp8(w, Fp8Scaling::kRow));
  EXPECT_TRUE(y.equal(same));
  const at::Tensor part = at::empty({6, 16}, at::kBFloat16);
  LinearInto(part, x, Stored(w, Fp8Scaling::kRow).Rows(16, 16));
  EXPECT_TRUE(part.equal(y.narrow(1, 16, 16)));
  // Cast again along columns, and with one scale beside x's.
  const at::Tensor values =
      Dequantize(Stored(w, Fp8Scaling::kRow), at::kBFloat16);
  const at::Tensor dx = at::empty({6, 64}, at::kBFloat16);
  const at::Tensor wanted = at::empty({6, 64}, at::kBFloat16);
  LinearBackwardInto(dx, dy, Stored(w, Fp8Scaling::kTensor));
  LinearBackwardInto(wanted, dy, InFp8(values, Fp8Scaling::kTensor));
  EXPECT_TRUE(dx.equal(wanted));
  LinearInto(y, x, Stored(w, Fp8Scaling::kTensor));
  EXPECT_LT(
      Difference(y.to(at::kDouble), at::mm(x, values.t()).to(at::kDouble)),
      0.05);
  // Without products in 8 bits, those of the values.
  LinearInto(y, x, Stored(w, Fp8Scaling::kOff));
  EXPECT_LT(
      Difference(y.to(at::kDouble), at::mm(x, values.t()).to(at::kDouble)),
      0.01);
  LinearBackwardInto(dx, dy, Stored(w, Fp8Scaling::kOff));
  EXPECT_LT(Difference(dx.to(at::kDouble), at::mm(dy, values).to(at::kDouble)),
            0.01);
  // In float32 the values themselves.
  const at::Tensor wide = at::empty({6, 48}, at::kFloat);
  LinearInto(wide, x.to(at::kFloat), Stored(w, Fp8Scaling::kOff));
  const at::Tensor exact = at::mm(
      x.to(at::kDouble),
      Dequantize(Stored(w, Fp8Scaling::kOff), at::kFloat).to(at::kDouble).t());
  EXPECT_LT(Difference(wide.to(at::kDouble), exact), 1e-6);
}

TEST(Fp8LinearTest, CastsWhatIsUnchangedOnce) {
  at::manual_seed(10);
  const at::Tensor x = Normal({16, 32}), other = Normal({16, 32});
  const auto cast = [](const at::Tensor& t, at::ScalarType type) {
    return CastToFp8(t, type, Fp8Scaling::kRow, Fp8Underflow::kInputs).values;
  };
  const at::Tensor wanted = cast(x, at::kFloat8_e4m3fn);
  const at::Tensor transposed = cast(x.t(), at::kFloat8_e4m3fn);
  {
    const Fp8Unchanged same(x.const_data_ptr());
    const at::Tensor first = cast(x, at::kFloat8_e4m3fn);
    EXPECT_TRUE(first.equal(wanted));
    EXPECT_TRUE(cast(x, at::kFloat8_e4m3fn).is_alias_of(first));
    EXPECT_FALSE(cast(other, at::kFloat8_e4m3fn).is_alias_of(first));
    EXPECT_TRUE(cast(x.t(), at::kFloat8_e4m3fn).equal(transposed));
    EXPECT_FALSE(cast(x, at::kFloat8_e5m2).equal(wanted));
    EXPECT_TRUE(cast(x, at::kFloat8_e4m3fn).equal(wanted));
  }
  at::Tensor(x).fill_(1.0);
  EXPECT_FALSE(cast(x, at::kFloat8_e4m3fn).equal(wanted));
}

TEST(Fp8LinearTest, CountsWhatBecomesZero) {
  Fp8Underflow underflow(at::kCPU);
  ASSERT_EQ(CurrentFp8Underflow(), &underflow);
  // E4M3's least is 2^-9: with a scale of 1, what is at most half of it is 0.
  const at::Tensor x =
      at::tensor({448.0, 0.0, 0x1p-9, 0x1.8p-10, 0x1p-10, -0x1p-11, 1.0, 0.0})
          .view({1, 8})
          .to(at::kBFloat16);
  CastToFp8(x, at::kFloat8_e4m3fn, Fp8Scaling::kRow, Fp8Underflow::kWeights);
  CastToFp8(x, at::kFloat8_e4m3fn, Fp8Scaling::kRow, Fp8Underflow::kWeights);
  CastToFp8(x.t(), at::kFloat8_e4m3fn, Fp8Scaling::kTensor,
            Fp8Underflow::kGradients);
  const at::Tensor wanted =
      at::tensor({0.0, 0.0, 4.0, 12.0, 2.0, 6.0}, at::kDouble).view({3, 2});
  EXPECT_TRUE(underflow.counts().equal(wanted)) << underflow.counts();
  underflow.Clear();
  EXPECT_TRUE(underflow.counts().eq(0.0).all().item<bool>());
}

// ---- In a block.

class Sums final : public GradientSink, public WideGradientSink {
 public:
  explicit Sums(const std::vector<at::Tensor>& matrices) {
    for (const at::Tensor& m : matrices) {
      sums_.push_back(at::zeros(m.sizes(), at::kFloat));
    }
  }
  Place Open(int) override { return {}; }
  Place OpenWide(int parameter) override { return {sums_[parameter], true}; }
  const std::vector<at::Tensor>& sums() const { return sums_; }

 private:
  std::vector<at::Tensor> sums_;
};

// y, dx and the gradients of matrices.
Tensors RunBlock(Fp8Scaling scaling, bool fused) {
  at::manual_seed(8);
  const int64_t hidden = 64, inner = 96, kv = 32, length = 12;
  const std::vector<at::Tensor> matrices = {
      Normal({hidden, hidden}, 0.1), Normal({kv, hidden}, 0.1),
      Normal({kv, hidden}, 0.1),     Normal({hidden, hidden}, 0.1),
      Normal({inner, hidden}, 0.1),  Normal({inner, hidden}, 0.1),
      Normal({hidden, inner}, 0.1)};
  const at::Tensor norm = at::ones({hidden}, at::kBFloat16);
  std::vector<Weight> w;
  for (const at::Tensor& m : matrices) {
    w.push_back(InFp8(at::Tensor(m).set_requires_grad(true), scaling));
  }
  TransformerBlockWeights weights;
  weights.attention = {norm, w[0], w[1], w[2]};
  weights.attention.k_bias = Normal({kv});
  weights.output = w[3];
  weights.mlp = {norm, w[4], w[5], w[6]};
  TransformerBlockOptions options;
  options.shape = {2, 4, 2, 16};
  options.eps = kEps;
  options.rope_table = RopeTable(length, 16, 100.0);
  Sums sums(matrices);
  options.sink = &sums;
  options.parameters = {0, 1, 2, 3, 4, 5, 6};
  at::Tensor x = Normal({2 * length, hidden}).set_requires_grad(true);
  const at::Tensor y = fused ? TransformerBlock(x, weights, options)
                             : PlainTransformerBlock(x, weights, options);
  torch::autograd::backward({y}, {Normal(y.sizes())});
  Tensors made = {y.detach(), x.grad()};
  made.insert(made.end(), sums.sums().begin(), sums.sums().end());
  return made;
}

double Apart(const Tensors& a, const Tensors& b) {
  double most = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const at::Tensor wide = b[i].to(at::kDouble);
    most = std::max(
        most,
        ((a[i].to(at::kDouble) - wide).norm() / wide.norm()).item<double>());
  }
  return most;
}

TEST(Fp8BlockTest, EachPathHasAllProductsInEightBits) {
  const Tensors bf16 = RunBlock(Fp8Scaling::kOff, /*fused=*/true);
  for (const Fp8Scaling scaling : kBoth) {
    const Tensors fused = RunBlock(scaling, /*fused=*/true);
    // Of every result: E4M3's rounding is up to 2^-4, E5M2's 2^-3.
    for (size_t i = 0; i < bf16.size(); ++i) {
      const double apart = Apart({fused[i]}, {bf16[i]});
      EXPECT_GT(apart, 0.005) << i;
      EXPECT_LT(apart, 0.15) << i;
    }
    EXPECT_EQ(Apart(RunBlock(scaling, true), fused), 0.0);
    // Other nodes, which round elsewhere; 8 bits make more of that.
    EXPECT_LT(Apart(RunBlock(scaling, /*fused=*/false), fused), 0.04);
    const GpuPathForTest gpu;
    EXPECT_LT(Apart(RunBlock(scaling, /*fused=*/false), fused), 0.04);
  }
}

}  // namespace
}  // namespace capstan::kernels
