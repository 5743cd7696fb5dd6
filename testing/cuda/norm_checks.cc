// SPDX-License-Identifier: Apache-2.0
//
// RMSNorm, rope, SwiGLU and dropout.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/dispatch.h"
#include "testing/cuda/checks.h"

namespace capstan::kernels::cuda {
namespace {

constexpr double kEps = 1e-5;

at::Tensor Leaf(const at::Tensor& t) {
  return t.to(at::kCPU).to(at::kDouble).set_requires_grad(true);
}

}  // namespace

Outputs CheckRmsNorm(const Subject& subject, at::ScalarType dtype, int64_t rows,
                     int64_t n) {
  const auto device = subject.device;
  const at::Tensor x = Normal(1, {rows, n}, dtype).to(device);
  const at::Tensor weight = (Normal(3, {n}, dtype) * 0.1 + 1.0).to(device);
  const at::Tensor dy = Normal(4, {rows, n}, dtype).to(device);
  const at::Tensor skip = Normal(5, {rows, n}, dtype).to(device);

  const NormResult out = RmsNorm(subject.cuda, x, weight, kEps);
  const at::Tensor s = Leaf(x), w = Leaf(weight);
  const at::Tensor rstd = at::rsqrt(at::mean(s * s, {-1}, true) + kEps);
  const at::Tensor y = s * rstd * w;
  ExpectClose(out.rstd, rstd.detach().view({rows}), at::kFloat, 4, "rstd");
  // As accurate as rstd in float32, which 16-bit types don't show.
  ExpectClose(out.y, y.detach(), dtype, dtype == at::kFloat ? 6 : 2, "y");

  EXPECT_TRUE(SameBits(RmsNormAgain(subject.cuda, x, weight, out.rstd), out.y))
      << "again";

  // With a sum that is rounded first.
  at::Tensor sum = at::empty_like(x);
  const NormResult added = AddRmsNorm(subject.cuda, x, skip, weight, kEps, sum);
  EXPECT_TRUE(SameBits(sum, x + skip)) << "the sum";
  const NormResult apart = RmsNorm(subject.cuda, sum, weight, kEps);
  EXPECT_TRUE(SameBits(added.y, apart.y)) << "y of a sum";
  EXPECT_TRUE(SameBits(added.rstd, apart.rstd)) << "rstd of a sum";
  at::Tensor sum2 = at::empty_like(x);
  const at::Tensor again = at::empty_like(x);
  AddRmsNorm(subject.cuda, x, skip, weight, kEps, sum2, false, again);
  EXPECT_TRUE(SameBits(sum2, sum) && SameBits(again, sum)) << "twice";

  // dx is a difference of terms of this size.
  const at::Tensor term =
      rstd.detach() * w.detach() * dy.to(at::kCPU).to(at::kDouble);
  const double terms = std::sqrt((term * term).mean().item<double>());
  y.backward(dy.to(at::kCPU).to(at::kDouble));
  at::Tensor dw = at::empty({n}, x.options().dtype(at::kFloat));
  const at::Tensor dx =
      RmsNormBackward(subject.cuda, dy, x, weight, out.rstd, skip, {{}, dw});
  ExpectClose(dx, s.grad() + skip.to(at::kCPU).to(at::kDouble), dtype, 8,
              "dx with residual", terms);
  ExpectClose(dw, w.grad(), at::kFloat, 16, "dweight");
  at::Tensor rounded = at::full({n}, 3.0, x.options());
  const at::Tensor alone = RmsNormBackward(
      subject.cuda, dy, x, weight, out.rstd, at::Tensor(), {{}, rounded});
  ExpectClose(alone, s.grad(), dtype, 8, "dx", terms);
  ExpectClose(rounded, w.grad(), dtype, 16, "dweight of x's dtype");
  EXPECT_TRUE(SameBits(
      RmsNormBackward(subject.cuda, dy, x, weight, out.rstd, at::Tensor(), {}),
      alone))
      << "without dweight";
  // Added to what is there.
  const at::Tensor grown = at::full({n}, 3.0, x.options().dtype(at::kFloat));
  RmsNormBackward(subject.cuda, dy, x, weight, out.rstd, skip,
                  {{}, grown, /*add=*/true});
  EXPECT_TRUE(SameBits(grown, dw + 3.0)) << "added dweight";
  // 1 + weight, for y and dx; dweight is the same.
  const at::Tensor shifted = (weight.to(at::kFloat) - 1.0).to(dtype);
  const NormResult plus = RmsNorm(subject.cuda, x, shifted, kEps, true);
  const at::Tensor s1 = Leaf(x), w1 = Leaf(shifted);
  const at::Tensor y1 =
      s1 * at::rsqrt(at::mean(s1 * s1, {-1}, true) + kEps) * (w1 + 1.0);
  ExpectClose(plus.y, y1.detach(), dtype, dtype == at::kFloat ? 6 : 2,
              "y with 1 + weight");
  EXPECT_TRUE(SameBits(RmsNormAgain(subject.cuda, x, shifted, plus.rstd, true),
                       plus.y));
  y1.backward(dy.to(at::kCPU).to(at::kDouble));
  at::Tensor dw1 = at::empty({n}, x.options().dtype(at::kFloat));
  const at::Tensor dx1 = RmsNormBackward(
      subject.cuda, dy, x, shifted, plus.rstd, at::Tensor(), {{}, dw1}, true);
  ExpectClose(dx1, s1.grad(), dtype, 8, "dx with 1 + weight", terms);
  ExpectClose(dw1, w1.grad(), at::kFloat, 16, "dweight with 1 + weight");
  return {out.y, out.rstd, dx, dw, rounded, plus.y, dx1};
}

// Heads that are columns of wider rows, as queries and keys are of one product.
Outputs CheckHeadNorms(const Subject& subject, at::ScalarType dtype,
                       int64_t rows, int64_t heads, int64_t n, int64_t before) {
  const int64_t width = heads * n;
  const auto heads_of = [&](const at::Tensor& wide) {
    return wide.narrow(1, before, width).view({rows, heads, n});
  };
  const at::Tensor wide =
      Normal(1, {rows, before + width + 8}, dtype).to(subject.device);
  const at::Tensor weight = Normal(2, {n}, dtype).to(subject.device);
  const at::Tensor dy = Normal(3, {rows * heads, n}, dtype).to(subject.device);
  // As (un)aligned, so that sums are of the same order.
  const at::Tensor dense = at::empty({before + rows * width}, wide.options())
                               .narrow(0, before, rows * width)
                               .view({rows * heads, n});
  dense.copy_(heads_of(wide).reshape({-1, n}));
  const NormResult want = RmsNorm(subject.cuda, dense, weight, kEps);
  const NormResult got = RmsNorm(subject.cuda, heads_of(wide), weight, kEps);
  EXPECT_TRUE(SameBits(got.y, want.y)) << "y";
  EXPECT_TRUE(SameBits(got.rstd, want.rstd)) << "rstd";
  EXPECT_TRUE(SameBits(
      RmsNormAgain(subject.cuda, heads_of(wide), weight, got.rstd), want.y))
      << "again";
  const auto floats = wide.options().dtype(at::kFloat);
  const at::Tensor dw = at::empty({n}, floats), dw2 = at::empty({n}, floats);
  const at::Tensor dx = RmsNormBackward(subject.cuda, dy, dense, weight,
                                        want.rstd, at::Tensor(), {{}, dw});
  // Into columns of a matrix of another width.
  const at::Tensor into =
      at::full({rows, 2 * before + width}, 7.0, wide.options());
  const at::Tensor columns =
      into.narrow(1, 2 * before, width).view({rows, heads, n});
  RmsNormBackward(subject.cuda, dy, heads_of(wide), weight, want.rstd,
                  at::Tensor(), {columns, dw2});
  EXPECT_TRUE(SameBits(columns.reshape({-1, n}), dx)) << "dx";
  EXPECT_TRUE(SameBits(dw2, dw)) << "dweight";
  EXPECT_TRUE(into.narrow(1, 0, 2 * before).eq(7.0).all().item<bool>());
  return {got.y, got.rstd, dx, dw};
}

Outputs CheckRope(const Subject& subject, at::ScalarType dtype,
                  int64_t positions, int64_t heads, int64_t head_dim,
                  bool aligned) {
  const int64_t rows = 3 * positions, width = heads * head_dim;
  const int64_t half = head_dim / 2;
  // Any numbers serve as cosines and sines.
  const at::Tensor table = Normal(1, {positions, head_dim}, at::kFloat);
  const int64_t first = aligned ? 16 : 3;
  const at::Tensor all =
      Normal(2, {first + rows * width}, dtype).to(subject.device);
  const auto matrix = [&](const at::Tensor& t) {
    return t.narrow(0, first, rows * width).view({rows, width});
  };
  Outputs outputs;
  for (const double sign : {1.0, -1.0}) {
    const at::Tensor copy = all.clone();
    at::Tensor x = matrix(copy);
    Rope(subject.cuda, table.to(subject.device), sign, x, x);
    const at::Tensor before = matrix(all)
                                  .to(at::kCPU)
                                  .to(at::kDouble)
                                  .reshape({3, positions, heads, head_dim});
    const at::Tensor angles = table.to(at::kDouble).unsqueeze(1);
    const at::Tensor c = angles.narrow(-1, 0, half);
    const at::Tensor s = angles.narrow(-1, half, half) * sign;
    const at::Tensor a = before.narrow(-1, 0, half);
    const at::Tensor b = before.narrow(-1, half, half);
    const at::Tensor expected = at::cat({a * c - b * s, b * c + a * s}, -1);
    // Differences of products, each of up to four times the size.
    ExpectClose(x, expected.reshape({rows, width}), dtype, 5, "rope");
    EXPECT_TRUE(SameBits(copy.narrow(0, 0, first), all.narrow(0, 0, first)))
        << "what is before x";
    // A table of each row's own position, as for packed rows.
    const at::Tensor again = all.clone();
    at::Tensor y = matrix(again);
    const at::Tensor own = at::arange(rows) % positions;
    Rope(subject.cuda, table.index_select(0, own).to(subject.device), sign, y,
         y);
    EXPECT_TRUE(SameBits(again, copy)) << "a row of the table for each";
    // From columns of a wider matrix, into other columns of another.
    const int64_t apart = aligned ? 16 : 3;
    const at::Tensor from =
        Normal(3, {rows, apart + width}, dtype).to(subject.device);
    from.narrow(1, apart, width).copy_(matrix(all));
    const at::Tensor into =
        at::full({rows, 2 * apart + width}, 7.0, x.options());
    at::Tensor columns = into.narrow(1, apart, width);
    Rope(subject.cuda, table.to(subject.device), sign,
         from.narrow(1, apart, width), columns);
    EXPECT_TRUE(SameBits(columns, x)) << "columns";
    EXPECT_TRUE(into.narrow(1, 0, apart).eq(7.0).all().item<bool>());
    EXPECT_TRUE(
        into.narrow(1, apart + width, apart).eq(7.0).all().item<bool>());
    outputs.push_back(copy);
  }
  return outputs;
}

Outputs CheckSwiGlu(const Subject& subject, at::ScalarType dtype, int64_t rows,
                    int64_t n) {
  const at::Tensor both = Normal(1, {rows, 2 * n}, dtype).to(subject.device);
  at::Tensor gate = both.narrow(1, 0, n).clone(at::MemoryFormat::Contiguous);
  at::Tensor up = both.narrow(1, n, n).clone(at::MemoryFormat::Contiguous);
  const at::Tensor d = Normal(2, {rows, n}, dtype).to(subject.device);
  const at::Tensor g = Leaf(gate), u = Leaf(up);
  const at::Tensor expected = at::silu(g) * u;
  const at::Tensor out = SwiGlu(subject.cuda, gate, up);
  ExpectClose(out, expected.detach(), dtype, 3, "silu(gate) * up");
  const at::Tensor strided =
      SwiGlu(subject.cuda, both.narrow(1, 0, n), both.narrow(1, n, n));
  EXPECT_TRUE(SameBits(strided, out)) << "not contiguous";

  expected.backward(d.to(at::kCPU).to(at::kDouble));
  at::Tensor d_out = d.clone(), d_gate = at::empty({rows, n}, both.options());
  at::Tensor d_up = at::empty({rows, n}, both.options());
  SwiGluBackward(subject.cuda, gate, up, d_out, d_gate, d_up);
  // d_gate = d * up * slope, and a slope is a sum whose terms may cancel.
  const at::Tensor factor = d.to(at::kCPU).to(at::kDouble) * u.detach();
  const double terms = std::sqrt((factor * factor).mean().item<double>());
  ExpectClose(d_gate, g.grad(), dtype, 4, "d_gate", terms);
  ExpectClose(d_up, u.grad(), dtype, 3, "d_up");
  ExpectClose(d_out, expected.detach(), dtype, 3, "activation again");
  // Columns of one matrix, into columns of another.
  at::Tensor d_strided = d.clone();
  const at::Tensor d_both = at::full({rows, 2 * n + 8}, 7.0, both.options());
  at::Tensor d_first = d_both.narrow(1, 0, n), d_next = d_both.narrow(1, n, n);
  SwiGluBackward(subject.cuda, both.narrow(1, 0, n), both.narrow(1, n, n),
                 d_strided, d_first, d_next);
  EXPECT_TRUE(SameBits(d_first, d_gate)) << "d_gate in columns";
  EXPECT_TRUE(SameBits(d_next, d_up)) << "d_up in columns";
  EXPECT_TRUE(SameBits(d_strided, d_out));
  EXPECT_TRUE(d_both.narrow(1, 2 * n, 8).eq(7.0).all().item<bool>());
  // Gradients written over gate and up.
  at::Tensor d_again = d.clone();
  SwiGluBackward(subject.cuda, gate, up, d_again, gate, up);
  EXPECT_TRUE(SameBits(gate, d_gate)) << "d_gate in place";
  EXPECT_TRUE(SameBits(up, d_up)) << "d_up in place";
  EXPECT_TRUE(SameBits(d_again, d_out));
  // GELU, with gradients over gate and up, which are what gate and up were.
  at::Tensor gate2 = both.narrow(1, 0, n).clone(at::MemoryFormat::Contiguous);
  at::Tensor up2 = both.narrow(1, n, n).clone(at::MemoryFormat::Contiguous);
  const at::Tensor g2 = Leaf(gate2), u2 = Leaf(up2);
  const at::Tensor gelu = at::gelu(g2, "tanh") * u2;
  const at::Tensor out2 = SwiGlu(subject.cuda, gate2, up2, true);
  ExpectClose(out2, gelu.detach(), dtype, 4, "gelu(gate) * up");
  gelu.backward(d.to(at::kCPU).to(at::kDouble));
  at::Tensor d2 = d.clone();
  SwiGluBackward(subject.cuda, gate2, up2, d2, gate2, up2, true);
  // The slope has 2 g k (1 + 3 c g^2) times the rounding of a sigmoid near 1:
  // 26 units of float32 at g = 4.5.
  ExpectClose(gate2, g2.grad(), dtype, dtype == at::kFloat ? 32 : 12,
              "d_gate of GELU", terms);
  ExpectClose(up2, u2.grad(), dtype, 4, "d_up of GELU");
  ExpectClose(d2, gelu.detach(), dtype, 4, "GELU's activation again");
  return {out, d_out, d_gate, d_up, out2, d2, gate2, up2};
}

Outputs CheckDropout(const Subject& subject, at::ScalarType dtype,
                     int64_t samples, int64_t length, int64_t n) {
  constexpr double kRate = 0.3;
  const uint64_t key = RandomKey(7, "dropout");
  std::vector<int64_t> positions(samples);
  for (int64_t i = 0; i < samples; ++i) {
    positions[i] = (int64_t{1} << 33) + 5 * i;
  }
  const int64_t rows = samples * length, groups = (n + 3) / 4;
  at::Tensor kept = at::empty({rows, n}, at::kDouble);
  double* factor = kept.mutable_data_ptr<double>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      const uint32_t bits = RandomBits(key, r % length * groups + c / 4,
                                       positions[r / length])[c % 4];
      *factor++ = bits < kRate * 4294967296.0 ? 0.0 : 1.0 / (1.0 - kRate);
    }
  }
  const at::Tensor x = Normal(1, {rows, n}, dtype);
  const at::Tensor out =
      Dropout(subject.cuda, x.to(subject.device),
              at::tensor(positions, at::kLong).to(subject.device), key, kRate);
  ExpectClose(out, x.to(at::kDouble) * kept, dtype, 2, "dropout");
  EXPECT_TRUE(SameBits(out.ne(0), kept.ne(0))) << "what is dropped";

  constexpr int64_t kFirst = 3;
  const at::Tensor size = Normal(2, {samples}, at::kFloat).abs_();
  at::Tensor noise = at::empty({rows, n}, at::kDouble);
  double* u = noise.mutable_data_ptr<double>();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      const uint32_t bits =
          RandomBits(key, (kFirst + r % length) * groups + c / 4,
                     positions[r / length])[c % 4];
      *u++ = (bits / 2147483648.0 - 1.0) * size[r / length].item<double>();
    }
  }
  at::Tensor noisy = x.clone().to(subject.device);
  AddNoise(subject.cuda, at::tensor(positions, at::kLong).to(subject.device),
           size.to(subject.device), key, kFirst, noisy);
  ExpectClose(noisy, x.to(at::kDouble) + noise, dtype, 2, "noise");
  return {out, noisy};
}

}  // namespace capstan::kernels::cuda
