// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/fp8_linear.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/profile.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/layers/linear.h"
#include "kernels/quant/fp8.h"
#include "kernels/quant/packed_linear.h"

namespace capstan::kernels {
namespace {

constexpr int64_t kMultiple = 16;
constexpr int64_t kCpuPiece = 1 << 16;  // numbers that are cast at a time

constexpr c10::ScalarType kValues = at::kFloat8_e4m3fn;
constexpr c10::ScalarType kGradients = at::kFloat8_e5m2;

thread_local Fp8Unchanged* unchanged = nullptr;
thread_local Fp8BothWays* both_ways = nullptr;

float MostOf(c10::ScalarType type) {
  return type == kValues ? kE4m3Most : 57344.0f;
}

int64_t Padded(int64_t columns) {
  return (columns + kMultiple - 1) / kMultiple * kMultiple;
}

// Greatest magnitudes, [rows, 1] or [1, 1] float32: one of x's own, so that it
// is exact in x's dtype, of which CPUs would make a copy in another.
at::Tensor Amax(const at::Tensor& x, Fp8Scaling scaling) {
  const bool by_row = scaling == Fp8Scaling::kRow;
  const auto dims =
      by_row ? std::vector<int64_t>{1} : std::vector<int64_t>{0, 1};
  return at::linalg_vector_norm(x, std::numeric_limits<double>::infinity(),
                                at::OptionalIntArrayRef(dims),
                                /*keepdim=*/true)
      .to(at::kFloat);
}

// x times `factor`, cast: in bfloat16. Some rows at a time, as ATen makes
// float32 copies.
at::Tensor CastOnCpu(const at::Tensor& x, const at::Tensor& factor,
                     c10::ScalarType type) {
  const int64_t rows = x.size(0), columns = x.size(1);
  at::Tensor values = at::empty(
      {rows, columns}, x.options().dtype(at::kBFloat16).requires_grad(false));
  const int64_t piece = std::max<int64_t>(1, kCpuPiece / columns);
  for (int64_t begin = 0; begin < rows; begin += piece) {
    const int64_t count = std::min(piece, rows - begin);
    const at::Tensor of_rows =
        factor.size(0) == 1 ? factor : factor.narrow(0, begin, count);
    values.narrow(0, begin, count)
        .copy_(at::mul(x.narrow(0, begin, count), of_rows).to(type));
  }
  return values;
}

// With columns of zeros up to a multiple of 16. Multiplied in float32 and
// rounded where it is written: one kernel. For GPUs without kernels of ours.
at::Tensor CastOnGpu(const at::Tensor& x, const at::Tensor& factor,
                     c10::ScalarType type) {
  const int64_t rows = x.size(0), columns = x.size(1);
  const auto options = x.options().dtype(type).requires_grad(false);
  const int64_t width = Padded(columns);
  at::Tensor values = width == columns ? at::empty({rows, columns}, options)
                                       : at::zeros({rows, width}, options);
  at::Tensor own = values.narrow(1, 0, columns);
  at::mul_out(own, x, factor);
  return values;
}

// other: if not null, a GPU's kernel may make that of x^T at once, of the same
// scale.
Fp8Factor Cast(const at::Tensor& x, c10::ScalarType type, Fp8Scaling scaling,
               Fp8Factor* other) {
  if (const auto* cuda = cuda::For(x)) {
    const bool by_row = scaling == Fp8Scaling::kRow;
    const bool both = other != nullptr && !by_row;
    const bool turned = x.stride(1) != 1;
    const auto made = cuda::CastFp8(*cuda, both && !turned ? x.t() : x, type,
                                    by_row, both, MostOf(type), kLeastAmax);
    if (!both) return {made.values, made.scale};
    const Fp8Factor of_columns = {made.values, made.scale};
    const Fp8Factor of_rows = {made.turned, made.scale};
    *other = turned ? of_rows : of_columns;
    return turned ? of_columns : of_rows;
  }
  const at::Tensor scale =
      Amax(x, scaling).clamp_min_(kLeastAmax).div_(MostOf(type));
  const at::Tensor factor = scale.reciprocal();
  return {x.is_cuda() ? CastOnGpu(x, factor, type) : CastOnCpu(x, factor, type),
          scale};
}

at::Tensor Dense(const Weight& weight) {
  return weight.packed() ? Dequantize(weight, at::kBFloat16) : weight.tensor;
}

// W as a factor of x W^T.
Fp8Factor FactorOf(const Weight& weight) {
  if (weight.format != WeightFormat::kFp8) {
    return CastToFp8(Dense(weight), kValues, weight.fp8,
                     Fp8Underflow::kWeights);
  }
  Fp8Factor stored = {Fp8Values(weight), Fp8Scales(weight)};
  if (!stored.values.is_cuda()) stored.values = stored.values.to(at::kBFloat16);
  return stored;
}

// A factor's scale, one for each row if `by_row`.
at::Tensor ScaleOf(const Fp8Factor& factor, bool by_row) {
  return by_row ? factor.scale.expand({factor.values.size(0), 1}).contiguous()
                : factor.scale;
}

// Into [m, n] bfloat16 on a GPU.
void ScaledMmInto(at::Tensor to, const Fp8Factor& a, const Fp8Factor& b,
                  bool fast) {
  const bool by_row = a.scale.numel() > 1 || b.scale.numel() > 1;
  at::_scaled_mm_out(to, a.values, b.values.t(), ScaleOf(a, by_row),
                     ScaleOf(b, by_row).t(), /*bias=*/{}, /*scale_result=*/{},
                     at::kBFloat16, fast);
}

// to = a b^T + beta * to
void ProductInto(const at::Tensor& to, const Fp8Factor& a, const Fp8Factor& b,
                 bool fast, double beta) {
  TORCH_CHECK(beta == 0.0 || beta == 1.0, "a product is written or added");
  at::Tensor into = to;
  if (beta != 0.0) {
    into.add_(Fp8Product(a, b, fast));
  } else if (to.is_cuda() && to.scalar_type() == at::kBFloat16 &&
             to.is_contiguous()) {
    ScaledMmInto(into, a, b, fast);
  } else {
    into.copy_(Fp8Product(a, b, fast));
  }
}

// What a product of [m, k] and [n, k] allocates.
int64_t ProductBytes(int64_t m, int64_t n, int64_t k, bool gpu) {
  const int64_t scales = 4 * (m + n);
  if (gpu) return scales + (m + n) * k + 2 * m * n;
  // Two factors in bfloat16, and beside them a piece of one in float32, twice,
  // and in 8 bits; then the sums, and their bfloat16.
  const int64_t piece =
      std::min(std::max(m, n) * k, std::max(k, kCpuPiece)) * (4 + 4 + 1);
  return 4 * scales + 2 * (m + n) * k + std::max(piece, (4 + 2) * m * n);
}

}  // namespace

bool FitsFp8(int64_t out, int64_t in) {
  return out % kMultiple == 0 && in % kMultiple == 0;
}

bool UsesFp8(const Weight& weight) {
  return weight.fp8 != Fp8Scaling::kOff &&
         FitsFp8(weight.rows(), weight.columns());
}

Fp8Factor CastToFp8(const at::Tensor& x, c10::ScalarType type,
                    Fp8Scaling scaling, Fp8Underflow::Kind kind) {
  const at::NoGradGuard no_grad;
  Fp8Unchanged* const known =
      unchanged != nullptr && unchanged->data_ == x.const_data_ptr() ? unchanged
                                                                     : nullptr;
  if (known != nullptr && known->Has(x, type, scaling)) return known->factor_;
  Fp8BothWays* const ways = type == kGradients ? both_ways : nullptr;
  if (ways != nullptr) {
    if (ways->Has(x)) return std::move(ways->kept_);
    ways->kept_ = {};
  }
  const Fp8Factor made =
      Cast(x, type, scaling, ways != nullptr ? &ways->kept_ : nullptr);
  if (ways != nullptr) ways->of_ = x;
  if (Fp8Underflow* const underflow = CurrentFp8Underflow()) {
    underflow->Add(kind, x, made.values.narrow(1, 0, x.size(1)));
  }
  if (known != nullptr) {
    known->sizes_ = x.sizes().vec();
    known->strides_ = x.strides().vec();
    known->type_ = type;
    known->scaling_ = scaling;
    known->factor_ = made;
  }
  return made;
}

Fp8Unchanged::Fp8Unchanged(const void* data) : data_(data) {
  TORCH_INTERNAL_ASSERT(unchanged == nullptr);
  unchanged = this;
}

Fp8Unchanged::~Fp8Unchanged() { unchanged = nullptr; }

bool Fp8Unchanged::Has(const at::Tensor& x, c10::ScalarType type,
                       Fp8Scaling scaling) const {
  return x.sizes() == at::IntArrayRef(sizes_) &&
         x.strides() == at::IntArrayRef(strides_) && type == type_ &&
         scaling == scaling_;
}

Fp8BothWays::Fp8BothWays(bool wanted) {
  TORCH_INTERNAL_ASSERT(both_ways == nullptr);
  if (wanted) both_ways = this;
}

Fp8BothWays::~Fp8BothWays() { both_ways = nullptr; }

bool Fp8BothWays::Has(const at::Tensor& x) const {
  return kept_.values.defined() && x.const_data_ptr() == of_.const_data_ptr() &&
         x.sizes() == of_.t().sizes() && x.strides() == of_.t().strides();
}

at::Tensor Fp8Product(const Fp8Factor& a, const Fp8Factor& b, bool fast) {
  const ProfileScope profile("matrix products");
  if (a.values.is_cuda()) {
    at::Tensor product = at::empty({a.values.size(0), b.values.size(0)},
                                   a.values.options().dtype(at::kBFloat16));
    ScaledMmInto(product, a, b, fast);
    return product;
  }
  at::Tensor sums = at::empty({a.values.size(0), b.values.size(0)},
                              a.values.options().dtype(at::kFloat));
  MatMulInto(sums, a.values, b.values.t());
  return sums.mul_(a.scale).mul_(b.scale.t()).to(at::kBFloat16);
}

void Fp8LinearInto(const at::Tensor& y, const at::Tensor& x,
                   const Weight& weight, double beta) {
  if (x.size(0) == 0) return;  // nothing has no scale
  const Fp8Factor rows =
      CastToFp8(x, kValues, weight.fp8, Fp8Underflow::kInputs);
  ProductInto(y, rows, FactorOf(weight), /*fast=*/true, beta);
}

void Fp8LinearBackwardInto(const at::Tensor& dx, const at::Tensor& dy,
                           const Weight& weight, double beta) {
  if (dy.size(0) == 0) return;
  const Fp8Factor rows =
      CastToFp8(dy, kGradients, weight.fp8, Fp8Underflow::kGradients);
  const Fp8Factor w =
      CastToFp8(Dense(weight).t(), kValues, weight.fp8, Fp8Underflow::kWeights);
  ProductInto(dx, rows, w, /*fast=*/false, beta);
}

void Fp8WeightGradientInto(const at::Tensor& gradient, const at::Tensor& dy,
                           const at::Tensor& x, Fp8Scaling scaling,
                           double beta) {
  if (x.size(0) == 0) {  // a product of nothing has no scale
    if (beta == 0.0) at::Tensor(gradient).zero_();
    return;
  }
  const Fp8Factor rows =
      CastToFp8(dy.t(), kGradients, scaling, Fp8Underflow::kGradients);
  const Fp8Factor columns =
      CastToFp8(x.t(), kValues, scaling, Fp8Underflow::kInputs);
  ProductInto(gradient, rows, columns, /*fast=*/false, beta);
}

Fp8LinearMemory PlanFp8Linear(int64_t rows, int64_t in, int64_t out, bool gpu) {
  return {ProductBytes(rows, out, in, gpu),
          // With dy or its transpose, for the other product (Fp8BothWays).
          std::max(ProductBytes(rows, in, out, gpu),
                   ProductBytes(out, in, Padded(rows), gpu)) +
              (gpu ? out * Padded(rows) : 0)};
}

}  // namespace capstan::kernels
