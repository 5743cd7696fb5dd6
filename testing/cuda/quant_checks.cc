// SPDX-License-Identifier: Apache-2.0
//
// Dequantisation, and casts to 8 bits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/dispatch.h"
#include "kernels/quant/nf4.h"
#include "kernels/quant/pack_nf4_for_test.h"
#include "kernels/quant/packed_linear.h"
#include "testing/cuda/checks.h"

namespace capstan::kernels::cuda {

Outputs CheckDequantizeNf4(const Subject& subject, at::ScalarType dtype,
                           int64_t n, bool double_quantised) {
  const at::Tensor x = Normal(1, {n}, at::kFloat);
  const Nf4Layout layout(n, double_quantised);
  const at::Tensor packed = at::zeros({layout.bytes}, at::kByte);
  PackNf4(x.const_data_ptr<float>(), layout,
          packed.mutable_data_ptr<uint8_t>());
  const at::Tensor expected = at::empty({n}, at::kFloat);
  kernels::DequantizeNf4({packed.const_data_ptr<uint8_t>(), layout}, 0, n,
                         expected.mutable_data_ptr<float>());
  const at::Tensor there = packed.to(subject.device);
  // Aligned, so that stores are of whole vectors; and not.
  Outputs outputs;
  for (const int64_t shift : {0, 1}) {
    at::Tensor out =
        at::empty({n + shift}, at::TensorOptions(subject.device).dtype(dtype))
            .narrow(0, shift, n);
    DequantizeNf4(subject.cuda, CudaArguments(there, layout), out);
    EXPECT_TRUE(SameBits(out, expected.to(dtype))) << "shifted by " << shift;
    outputs.push_back(out);
  }
  // A part.
  if (n <= 1000) return outputs;
  at::Tensor part =
      at::empty({n - 936}, at::TensorOptions(subject.device).dtype(dtype));
  DequantizeNf4(subject.cuda, CudaArguments(there, layout, 936), part);
  EXPECT_TRUE(SameBits(part, expected.narrow(0, 936, n - 936).to(dtype)));
  outputs.push_back(part);
  return outputs;
}

Outputs CheckCastFp8(const Subject& subject, at::ScalarType type, int64_t rows,
                     int64_t n, bool turned, bool by_row) {
  // Magnitudes from subnormal results to outliers, in rows that are apart; one
  // row of zeros, and one that isn't finite.
  const at::Tensor whole = (Normal(1, {rows, n + 16}, at::kFloat) *
                            (Normal(2, {rows, n + 16}, at::kFloat) * 4.0).exp())
                               .to(at::kBFloat16);
  if (rows > 1) whole.narrow(0, 1, 1).zero_();
  Outputs outputs;
  for (const double odd : {1.0, HUGE_VAL, std::nan("")}) {
    if (by_row || odd != 1.0) whole[rows / 2][n / 2] = odd;
    const at::Tensor source = whole.narrow(1, 0, n);
    const at::Tensor x = turned ? source.t() : source;
    const float most = type == at::kFloat8_e5m2 ? 57344.0f : 448.0f;
    const float least = 1e-12f;
    const at::Tensor wide = x.to(at::kFloat);
    at::Tensor scale = by_row ? wide.abs().amax({1}, /*keepdim=*/true)
                              : wide.abs().amax({0, 1}, /*keepdim=*/true);
    scale = scale.clamp_min(least).div(most);
    const at::Tensor expected = (wide * scale.reciprocal()).to(type);
    const at::Tensor there = whole.to(subject.device).narrow(1, 0, n);
    const bool both = turned && !by_row;
    const CastTo8Bits made = CastFp8(subject.cuda, turned ? there.t() : there,
                                     type, by_row, both, most, least);
    EXPECT_TRUE(SameBits(made.scale, scale));
    const int64_t columns = x.size(1);
    EXPECT_EQ(made.values.size(1), (columns + 15) / 16 * 16);
    EXPECT_TRUE(SameBits(made.values.narrow(1, 0, columns).to(at::kFloat),
                         expected.to(at::kFloat)));
    EXPECT_TRUE(made.values.narrow(1, columns, made.values.size(1) - columns)
                    .to(at::kFloat)
                    .eq(0.0)
                    .all()
                    .item<bool>());
    outputs.push_back(made.values.to(at::kFloat));
    outputs.push_back(made.scale);
    if (both) {
      outputs.push_back(made.turned.to(at::kFloat));
      EXPECT_TRUE(SameBits(outputs.back(), expected.t().to(at::kFloat)));
    }
  }
  return outputs;
}

}  // namespace capstan::kernels::cuda
