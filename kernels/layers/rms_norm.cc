// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool OnRows(const at::Tensor& x, const at::Tensor& weight) {
  return x.dim() == 2 && HasRowKernels(x) && HasRowKernels(weight) &&
         weight.scalar_type() == x.scalar_type();
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

// Threads divide columns rather than rows, so that no two add to one number,
// and each adds in row order.
template <typename T>
void WeightGradient(const at::Tensor& dy, const at::Tensor& x,
                    const at::Tensor& rstd, at::Tensor& sums) {
  const int64_t rows = x.size(0), n = x.size(1);
  constexpr int64_t kColumns = 64;  // by cache lines
  const int64_t strips = (n + kColumns - 1) / kColumns;
  at::parallel_for(
      0, strips, RowGrain(rows * kColumns), [&](int64_t first, int64_t last) {
        const int64_t begin = first * kColumns;
        const int64_t end = std::min(n, last * kColumns);
        Simd().rows<T>().rms_norm_weight_gradient(
            ReadAs<T>(dy) + begin, ReadAs<T>(x) + begin, ReadAs<float>(rstd),
            rows, n, end - begin, WriteAs<float>(sums) + begin);
      });
}

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, double eps,
                            bool plus_one) {
    RmsNormResult result = RmsNormForward(x, weight, eps, plus_one);
    ctx->save_for_backward({x, weight, result.rstd});
    ctx->saved_data["plus_one"] = plus_one;
    return result.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    RmsNormGradients gradients = RmsNormBackward(
        grads[0], saved[0], saved[1], saved[2], at::Tensor(),
        ctx->needs_input_grad(1), ctx->saved_data["plus_one"].toBool());
    return {gradients.x, gradients.weight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

RmsNormResult RmsNormForward(const at::Tensor& x, const at::Tensor& of,
                             double eps, bool plus_one) {
  const ProfileScope profile("rms_norm");
  if (const auto* cuda = CudaFor(x, of)) {
    cuda::NormResult made = cuda::RmsNorm(*cuda, x, of, eps, plus_one);
    return {std::move(made.y), std::move(made.rstd)};
  }
  const at::Tensor weight = Factor(of, plus_one);
  if (!OnRows(x, weight)) {
    const at::Tensor xf = x.to(at::kFloat);
    const at::Tensor rstd = at::rsqrt(at::mean(xf * xf, {-1}) + eps);
    return {Times(weight, xf * rstd.unsqueeze(-1), x.scalar_type()), rstd};
  }
  const int64_t rows = x.size(0), n = x.size(1);
  RmsNormResult result{at::empty({rows, n}, x.options()),
                       at::empty({rows}, x.options().dtype(at::kFloat))};
  WithStorage(x.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    const T *xp = ReadAs<T>(x), *wp = ReadAs<T>(weight);
    T* yp = WriteAs<T>(result.y);
    float* sp = WriteAs<float>(result.rstd);
    at::parallel_for(0, rows, RowGrain(n), [&](int64_t begin, int64_t end) {
      Simd().rows<T>().rms_norm(xp + begin * n, wp, static_cast<float>(eps),
                                end - begin, n, yp + begin * n, sp + begin);
    });
  });
  return result;
}

AddRmsNormResult AddRmsNormForward(const at::Tensor& x,
                                   const at::Tensor& branch,
                                   const at::Tensor& of, double eps,
                                   bool plus_one) {
  if (const auto* cuda = CudaFor(x, of)) {
    const ProfileScope profile("rms_norm");
    at::Tensor sum = at::empty(x.sizes(), x.options());
    cuda::NormResult made =
        cuda::AddRmsNorm(*cuda, x, branch, of, eps, sum, plus_one);
    return {std::move(sum), {std::move(made.y), std::move(made.rstd)}};
  }
  at::Tensor sum = x + branch;
  RmsNormResult norm = RmsNormForward(sum, of, eps, plus_one);
  return {std::move(sum), std::move(norm)};
}

at::Tensor RmsNormAgain(const at::Tensor& x, const at::Tensor& of,
                        const at::Tensor& rstd, bool plus_one) {
  const ProfileScope profile("rms_norm");
  if (const auto* cuda = CudaFor(x, of)) {
    return cuda::RmsNormAgain(*cuda, x, of, rstd, plus_one);
  }
  const at::Tensor weight = Factor(of, plus_one);
  if (!OnRows(x, weight)) {
    return Times(weight, x.to(at::kFloat) * rstd.unsqueeze(-1),
                 x.scalar_type());
  }
  const int64_t rows = x.size(0), n = x.size(1);
  at::Tensor y = at::empty({rows, n}, x.options());
  WithStorage(x.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    const T *xp = ReadAs<T>(x), *wp = ReadAs<T>(weight);
    const float* sp = ReadAs<float>(rstd);
    T* yp = WriteAs<T>(y);
    at::parallel_for(0, rows, RowGrain(n), [&](int64_t begin, int64_t end) {
      Simd().rows<T>().rms_norm_again(xp + begin * n, wp, sp + begin,
                                      end - begin, n, yp + begin * n);
    });
  });
  return y;
}

RmsNormGradients RmsNormBackward(const at::Tensor& dy_any, const at::Tensor& x,
                                 const at::Tensor& of, const at::Tensor& rstd,
                                 const at::Tensor& residual, bool want_weight,
                                 bool plus_one) {
  const ProfileScope profile("rms_norm");
  RmsNormGradients gradients;
  if (const auto* cuda = CudaFor(x, of)) {
    if (want_weight) gradients.weight = at::empty(of.sizes(), of.options());
    gradients.x = cuda::RmsNormBackward(*cuda, dy_any, x, of, rstd, residual,
                                        gradients.weight, plus_one);
    return gradients;
  }
  const at::Tensor weight = Factor(of, plus_one);
  if (!OnRows(x, weight) || dy_any.scalar_type() != x.scalar_type() ||
      (residual.defined() && residual.scalar_type() != x.scalar_type())) {
    gradients =
        ComposedBackward(dy_any, x, weight, rstd, residual, want_weight);
    if (want_weight) {
      gradients.weight = gradients.weight.to(of.scalar_type());
    }
    return gradients;
  }
  const int64_t rows = x.size(0), n = x.size(1);
  const at::Tensor dy = dy_any.contiguous();
  const at::Tensor rest = residual.defined() ? residual.contiguous() : residual;
  gradients.x = at::empty({rows, n}, x.options());
  at::Tensor sums;
  if (want_weight) sums = at::zeros({n}, x.options().dtype(at::kFloat));
  WithStorage(x.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    const T *dyp = ReadAs<T>(dy), *xp = ReadAs<T>(x), *wp = ReadAs<T>(weight);
    const T* rp = ReadAs<T>(rest);
    const float* sp = ReadAs<float>(rstd);
    T* dxp = WriteAs<T>(gradients.x);
    // A single thread computes both gradients in one pass.
    const bool alone = rows < 2 * RowGrain(n) || at::get_num_threads() == 1 ||
                       at::in_parallel_region();
    float* dwp = alone ? WriteAs<float>(sums) : nullptr;
    at::parallel_for(
        0, rows, alone ? rows : RowGrain(n), [&](int64_t begin, int64_t end) {
          const int64_t at = begin * n;
          Simd().rows<T>().rms_norm_backward(dyp + at, xp + at, wp, sp + begin,
                                             rp != nullptr ? rp + at : nullptr,
                                             end - begin, n, dxp + at, dwp);
        });
    if (want_weight && !alone) WeightGradient<T>(dy, x, rstd, sums);
  });
  if (want_weight) gradients.weight = sums.to(of.scalar_type());
  return gradients;
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
                   bool plus_one) {
  return RmsNormFunction::apply(x, weight, eps, plus_one);
}

}  // namespace capstan::kernels
