// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/rms_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "base/profile.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"
#include "kernels/keep.h"
#include "kernels/layers/fused_rows.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool OnRows(const at::Tensor& x, const at::Tensor& weight) {
  return x.dim() == 2 && HasRowKernels(x) && HasRowKernels(weight) &&
         (weight.scalar_type() == x.scalar_type() || FastPath(weight));
}

// cuda::For, if they are of one dtype.
const cuda::CudaKernels* CudaFor(const at::Tensor& x,
                                 const at::Tensor& weight) {
  return x.scalar_type() == weight.scalar_type() ? cuda::For(x) : nullptr;
}

// weight * h, with a float32 h: rounded to `type` before a weight of that type,
// or once after a float32 one.
at::Tensor Times(const at::Tensor& weight, const at::Tensor& h,
                 at::ScalarType type) {
  return weight.scalar_type() == type ? weight * h.to(type)
                                      : (weight * h).to(type);
}

// What y is a multiple of: float32 if 1 was added.
at::Tensor Factor(const at::Tensor& weight, bool plus_one) {
  return plus_one ? weight.detach().to(at::kFloat) + 1.0 : weight;
}

// As RowKernels::rms_norm_backward, in float32.
RmsNormGradients ComposedBackward(const at::Tensor& dy, const at::Tensor& x,
                                  const at::Tensor& weight,
                                  const at::Tensor& rstd,
                                  const at::Tensor& residual,
                                  bool want_weight) {
  const at::Tensor s = rstd.unsqueeze(-1);
  const at::Tensor h = x.to(at::kFloat) * s;
  const at::Tensor dyf = dy.to(at::kFloat);
  const at::Tensor g = dyf * weight.to(at::kFloat);
  at::Tensor dx = s * (g - h * at::mean(g * h, {-1}, /*keepdim=*/true));
  if (residual.defined()) dx += residual;
  RmsNormGradients gradients;
  gradients.x = dx.to(x.scalar_type());
  if (want_weight) {
    gradients.weight = at::sum(dyf * h, {0});
  }
  return gradients;
}

struct NormCall {
  bool plus_one = false;
  WeightPlace place;
};

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, double eps,
                            const NormCall& call) {
    RmsNormResult result = RmsNormForward(x, weight, eps, call.plus_one);
    ctx->save_for_backward({x, weight, result.rstd});
    Keep(ctx, call);
    return result.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto& call = KeptOf<NormCall>(ctx);
    const bool wanted = ctx->needs_input_grad(1);
    WeightPlace::AnyPlace place;
    if (wanted) place = call.place.OpenOnGpu(saved[1]);
    RmsNormGradients gradients = RmsNormBackward(
        grads[0], saved[0], saved[1], saved[2], at::Tensor(), wanted,
        call.plus_one, {at::Tensor(), std::move(place.gradient), place.add});
    if (place.wide) gradients.weight.reset();
    return {gradients.x, std::move(gradients.weight), at::Tensor(),
            at::Tensor()};
  }
};

// [rows, n] of a norm's x or dy.
at::Tensor AsRows(const at::Tensor& x, int64_t n) {
  return x.dim() == 2 && x.size(1) == n ? x : x.reshape({-1, n});
}

// Moves what was made on the CPU to where it is to be.
RmsNormGradients Moved(RmsNormGradients made, RmsNormTarget into) {
  if (into.x.defined()) {
    into.x.copy_(made.x.view(into.x.sizes()));
    made.x = std::move(into.x);
  }
  if (into.weight.defined()) {
    if (into.add) {
      into.weight.add_(made.weight);
    } else {
      into.weight.copy_(made.weight);
    }
    made.weight = std::move(into.weight);
  }
  return made;
}

}  // namespace

RmsNormResult RmsNormForward(const at::Tensor& any, const at::Tensor& of,
                             double eps, bool plus_one) {
  if (const auto* cuda = CudaFor(any, of)) {
    const ProfileScope profile("rms_norm");
    cuda::NormResult made = cuda::RmsNorm(*cuda, any, of, eps, plus_one);
    return {std::move(made.y), std::move(made.rstd)};
  }
  const at::Tensor x = any.dim() == 3 ? AsRows(any, of.size(0)) : any;
  const at::Tensor weight = Factor(of, plus_one);
  if (!OnRows(x, weight)) {
    const ProfileScope profile("rms_norm");
    const at::Tensor xf = x.to(at::kFloat);
    const at::Tensor rstd = at::rsqrt(at::mean(xf * xf, {-1}) + eps);
    return {Times(weight, xf * rstd.unsqueeze(-1), x.scalar_type()), rstd};
  }
  const int64_t rows = x.size(0), n = x.size(1);
  RmsNormResult result{at::empty({rows, n}, x.options()),
                       at::empty({rows}, x.options().dtype(at::kFloat))};
  WithStorage(x.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    Normalise(ReadAs<T>(x), rows, weight, eps, WriteAs<T>(result.y),
              Data(result.rstd));
  });
  return result;
}

AddRmsNormResult AddRmsNormForward(const at::Tensor& x,
                                   const at::Tensor& branch,
                                   const at::Tensor& of, double eps,
                                   bool plus_one, at::Tensor* again) {
  if (const auto* cuda = CudaFor(x, of)) {
    const ProfileScope profile("rms_norm");
    at::Tensor sum = at::empty(x.sizes(), x.options());
    if (again != nullptr) *again = at::empty(x.sizes(), x.options());
    cuda::NormResult made =
        cuda::AddRmsNorm(*cuda, x, branch, of, eps, sum, plus_one,
                         again == nullptr ? at::Tensor() : *again);
    return {std::move(sum), {std::move(made.y), std::move(made.rstd)}};
  }
  at::Tensor sum = x + branch;
  if (again != nullptr) *again = sum.clone();
  RmsNormResult norm = RmsNormForward(sum, of, eps, plus_one);
  return {std::move(sum), std::move(norm)};
}

at::Tensor RmsNormAgain(const at::Tensor& any, const at::Tensor& of,
                        const at::Tensor& rstd, bool plus_one) {
  if (const auto* cuda = CudaFor(any, of)) {
    const ProfileScope profile("rms_norm");
    return cuda::RmsNormAgain(*cuda, any, of, rstd, plus_one);
  }
  const at::Tensor x = any.dim() == 3 ? AsRows(any, of.size(0)) : any;
  const at::Tensor weight = Factor(of, plus_one);
  if (!OnRows(x, weight)) {
    const ProfileScope profile("rms_norm");
    return Times(weight, x.to(at::kFloat) * rstd.unsqueeze(-1),
                 x.scalar_type());
  }
  at::Tensor y = at::empty(x.sizes(), x.options());
  WithStorage(x.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    NormaliseAgain(ReadAs<T>(x), x.size(0), weight, ConstData(rstd),
                   WriteAs<T>(y));
  });
  return y;
}

namespace {

// On the CPU, or by ATen's operators. The weight's gradient is float32.
RmsNormGradients BackwardOfRows(const at::Tensor& dy_any, const at::Tensor& x,
                                const at::Tensor& of, const at::Tensor& rstd,
                                const at::Tensor& residual, bool want_weight,
                                bool plus_one) {
  RmsNormGradients gradients;
  const at::Tensor weight = Factor(of, plus_one);
  if (!OnRows(x, weight) || dy_any.scalar_type() != x.scalar_type() ||
      (residual.defined() && residual.scalar_type() != x.scalar_type())) {
    const ProfileScope profile("rms_norm");
    return ComposedBackward(dy_any, x, weight, rstd, residual, want_weight);
  }
  const int64_t rows = x.size(0), n = x.size(1);
  const at::Tensor dy = dy_any.contiguous();
  const at::Tensor rest = residual.defined() ? residual.contiguous() : residual;
  gradients.x = at::empty({rows, n}, x.options());
  at::Tensor sums;
  if (want_weight) sums = at::empty({n}, x.options().dtype(at::kFloat));
  WithStorage(x.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    NormaliseBackward<T>({ReadAs<T>(dy), ReadAs<T>(x), ConstData(rstd),
                          ReadAs<T>(rest), WriteAs<T>(gradients.x)},
                         rows, weight, sums, /*same_bits=*/true);
  });
  gradients.weight = std::move(sums);
  return gradients;
}

}  // namespace

RmsNormGradients RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                                 const at::Tensor& of, const at::Tensor& rstd,
                                 const at::Tensor& residual, bool want_weight,
                                 bool plus_one, RmsNormTarget into) {
  if (const auto* cuda = CudaFor(x, of)) {
    const ProfileScope profile("rms_norm");
    cuda::NormGradients to = {std::move(into.x), {}, into.add};
    if (want_weight) {
      to.dweight = into.weight.defined() ? std::move(into.weight)
                                         : at::empty(of.sizes(), of.options());
    }
    at::Tensor weight = to.dweight;
    at::Tensor dx = cuda::RmsNormBackward(*cuda, dy, x, of, rstd, residual,
                                          std::move(to), plus_one);
    return {std::move(dx), std::move(weight)};
  }
  const int64_t n = of.size(0);
  RmsNormGradients made =
      x.dim() == 3
          ? BackwardOfRows(AsRows(dy, n), AsRows(x, n), of, rstd, residual,
                           want_weight, plus_one)
          : BackwardOfRows(dy, x, of, rstd, residual, want_weight, plus_one);
  if (want_weight && !into.weight.defined()) {
    made.weight = made.weight.to(of.scalar_type());
  }
  return Moved(std::move(made), std::move(into));
}

void PlanRmsNorm(int64_t rows, int64_t n, c10::ScalarType dtype,
                 MemoryLedger* ledger) {
  ledger->Take(rows * n * ElementBytes(dtype) + rows * kFloatBytes);
}

void PlanRmsNormBackward(int64_t rows, int64_t n, c10::ScalarType dtype,
                         bool want_weight, MemoryLedger* ledger) {
  const int64_t dx = rows * n * ElementBytes(dtype);
  // The weight's gradient in float32, before rounding.
  if (want_weight) ledger->Pass(dx + n * kFloatBytes);
  ledger->Take(dx + (want_weight ? n * ElementBytes(dtype) : 0));
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps,
                   bool plus_one, const WeightPlace& place) {
  return RmsNormFunction::apply(x, weight, eps, NormCall{plus_one, place});
}

}  // namespace capstan::kernels
