// SPDX-License-Identifier: Apache-2.0
//
// Products with packed matrices beside those with their values.
#include "kernels/quant/packed_linear.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quant/pack_nf4_for_test.h"

namespace capstan::kernels {
namespace {

at::Tensor Normal(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

Weight Packed(int64_t out, int64_t in, bool twice) {
  const at::Tensor x = Normal({out, in}, 3) * 0.1;
  const Nf4Layout layout(out * in, twice);
  const at::Tensor bytes = at::empty({layout.bytes}, at::kByte);
  PackNf4(x.const_data_ptr<float>(), layout, bytes.mutable_data_ptr<uint8_t>());
  return {bytes, twice ? WeightFormat::kNf4Double : WeightFormat::kNf4, out,
          in};
}

void ExpectClose(const at::Tensor& got, const at::Tensor& wanted,
                 const std::string& what) {
  const double size = wanted.abs().max().item<double>();
  EXPECT_LE((got.to(at::kDouble) - wanted).abs().max().item<double>(),
            2e-6 * size)
      << what;
}

// Sizes whose rows are whole blocks, and not; odd ones.
constexpr int64_t kSizes[][2] = {{64, 128},  {96, 64}, {33, 48},   {7, 5},
                                 {200, 448}, {1, 64},  {130, 1000}};

TEST(PackedLinearTest, MatchesProductsWithTheValues) {
  for (const auto& [out, in] : kSizes) {
    for (const bool twice : {false, true}) {
      const Weight weight = Packed(out, in, twice);
      const at::Tensor values = Dequantize(weight, at::kFloat);
      const at::Tensor exact = values.to(at::kDouble);
      for (const int64_t rows : {1, 2, 3, 4, 5, 17, 600}) {
        const std::string what = absl::StrCat(rows, " x [", out, ", ", in, "]");
        const at::Tensor x = Normal({rows, in}, 4);
        const at::Tensor dy = Normal({rows, out}, 5);
        // Wider than its rows.
        const at::Tensor y = at::empty({rows, out + 3}).narrow(1, 0, out);
        PackedLinearInto(y, x, weight);
        const at::Tensor wanted = at::mm(x.to(at::kDouble), exact.t());
        ExpectClose(y, wanted, what);
        PackedLinearInto(y, x, weight, 1.0);
        ExpectClose(y, wanted * 2.0, what + ", added");
        const at::Tensor dx = at::empty({rows, in});
        PackedLinearBackwardInto(dx, dy, weight);
        const at::Tensor wanted_dx = at::mm(dy.to(at::kDouble), exact);
        ExpectClose(dx, wanted_dx, what + " backward");
        PackedLinearBackwardInto(dx, dy, weight, 1.0);
        ExpectClose(dx, wanted_dx * 2.0, what + " backward, added");
      }
    }
  }
}

TEST(PackedLinearTest, HasTheBitsOfOwnGemm) {
  if (std::string(GemmName()) == "blas") GTEST_SKIP() << "the BLAS is in use";
  const Weight weight = Packed(450, 832, true);
  const at::Tensor values = Dequantize(weight, at::kFloat);
  for (const int64_t rows : {6, 40, 700}) {
    const at::Tensor x = Normal({rows, 832}, 4), dy = Normal({rows, 450}, 5);
    const at::Tensor y = at::empty({rows, 450}), dense_y = at::empty_like(y);
    const at::Tensor dx = at::empty({rows, 832}), dense_dx = at::empty_like(dx);
    PackedLinearInto(y, x, weight);
    PackedLinearBackwardInto(dx, dy, weight);
    const ConstMatrix w = {values.const_data_ptr<float>(), 832};
    Gemm(Transpose::kRight, rows, 450, 832, 1.0f,
         {x.const_data_ptr<float>(), 832}, w, 0.0f,
         {dense_y.mutable_data_ptr<float>(), 450});
    Gemm(Transpose::kNone, rows, 832, 450, 1.0f,
         {dy.const_data_ptr<float>(), 450}, w, 0.0f,
         {dense_dx.mutable_data_ptr<float>(), 832});
    EXPECT_TRUE(at::equal(y, dense_y)) << rows;
    EXPECT_TRUE(at::equal(dx, dense_dx)) << rows;
  }
}

TEST(PackedLinearTest, SixteenBitsRoundTheValues) {
  const Weight weight = Packed(48, 96, true);
  const at::Tensor values = Dequantize(weight, at::kFloat);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const at::Tensor rounded = Dequantize(weight, type);
    EXPECT_TRUE(at::equal(rounded, values.to(type)));
    const at::Tensor x = Normal({9, 96}, 4).to(type);
    const at::Tensor y = at::empty({9, 48}, x.options());
    PackedLinearInto(y, x, weight);
    EXPECT_TRUE(at::equal(y, at::mm(x, rounded.t())));
    const at::Tensor dx = at::empty({9, 96}, x.options());
    PackedLinearBackwardInto(dx, y, weight);
    EXPECT_TRUE(at::equal(dx, at::mm(y, rounded)));
  }
}

TEST(PackedLinearTest, RowsAreThoseOfTheWhole) {
  for (const auto& [out, in] : kSizes) {
    if (out < 9) continue;
    const Weight weight = Packed(out, in, true);
    const Weight rows = weight.Rows(2, out - 4).Rows(3, out - 8);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor values = Dequantize(weight, type).narrow(0, 5, out - 8);
      EXPECT_TRUE(at::equal(Dequantize(rows, type), values));
    }
    const at::Tensor values = Dequantize(rows, at::kFloat).to(at::kDouble);
    for (const int64_t n : {2, 7}) {
      const at::Tensor x = Normal({n, in}, 4), dy = Normal({n, out - 8}, 5);
      const at::Tensor y = at::empty({n, out - 8}), dx = at::empty({n, in});
      PackedLinearInto(y, x, rows);
      PackedLinearBackwardInto(dx, dy, rows);
      ExpectClose(y, at::mm(x.to(at::kDouble), values.t()), "rows");
      ExpectClose(dx, at::mm(dy.to(at::kDouble), values), "rows backward");
    }
  }
}

TEST(PackedLinearTest, RefusesOtherBytesAndShapes) {
  Weight weight = Packed(48, 96, true);
  const at::Tensor x = Normal({2, 96}, 4), y = at::empty({2, 48});
  EXPECT_THROW(PackedLinearInto(y, Normal({2, 95}, 4), weight), c10::Error);
  EXPECT_THROW(PackedLinearInto(x, y, weight), c10::Error);
  weight.format = WeightFormat::kNf4;
  EXPECT_THROW(PackedLinearInto(y, x, weight), c10::Error);
}

}  // namespace
}  // namespace capstan::kernels
