// SPDX-License-Identifier: Apache-2.0
#include "kernels/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/fast_path.h"
#include "kernels/simd.h"

namespace capstan {
namespace kernels {

RmsNormResult RmsNormForward(const at::Tensor& x, const at::Tensor& weight,
                             double eps) {
  if (!FastPath(x)) {
    const at::Tensor xf = x.to(at::kFloat);
    const at::Tensor rstd = at::rsqrt(at::mean(xf * xf, {-1}) + eps);
    return {weight * (xf * rstd.unsqueeze(-1)).to(x.scalar_type()), rstd};
  }
  const int64_t rows = x.size(0), n = x.size(1);
  RmsNormResult result{at::empty({rows, n}, x.options()),
                       at::empty({rows}, x.options())};
  const float* xp = x.const_data_ptr<float>();
  const float* wp = weight.const_data_ptr<float>();
  float* yp = result.y.mutable_data_ptr<float>();
  float* sp = result.rstd.mutable_data_ptr<float>();
  at::parallel_for(0, rows, RowGrain(n), [&](int64_t begin, int64_t end) {
    Simd().rms_norm(xp + begin * n, wp, static_cast<float>(eps), end - begin, n,
                    yp + begin * n, sp + begin);
  });
  return result;
}

at::Tensor RmsNormAgain(const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& rstd) {
  if (!FastPath(x)) {
    return weight * (x.to(at::kFloat) * rstd.unsqueeze(-1)).to(x.scalar_type());
  }
  const int64_t rows = x.size(0), n = x.size(1);
  at::Tensor y = at::empty({rows, n}, x.options());
  const float* xp = x.const_data_ptr<float>();
  const float* wp = weight.const_data_ptr<float>();
  const float* sp = rstd.const_data_ptr<float>();
  float* yp = y.mutable_data_ptr<float>();
  at::parallel_for(0, rows, RowGrain(n), [&](int64_t begin, int64_t end) {
    Simd().rms_norm_again(xp + begin * n, wp, sp + begin, end - begin, n,
                          yp + begin * n);
  });
  return y;
}

namespace {

// As SimdKernels::rms_norm_backward, in float32.
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
    gradients.weight = at::sum(dyf * h, {0}).to(weight.scalar_type());
  }
  return gradients;
}

}  // namespace

RmsNormGradients RmsNormBackward(const at::Tensor& dy_any, const at::Tensor& x,
                                 const at::Tensor& weight,
                                 const at::Tensor& rstd,
                                 const at::Tensor& residual, bool want_weight) {
  if (!FastPath(x)) {
    return ComposedBackward(dy_any, x, weight, rstd, residual, want_weight);
  }
  const int64_t rows = x.size(0), n = x.size(1);
  const at::Tensor dy = dy_any.contiguous();
  const at::Tensor rest = residual.defined() ? residual.contiguous() : residual;
  // A sum over rows a piece of the rows, so that threads don't share one; the
  // number of pieces doesn't depend on which thread comes first.
  const int64_t pieces = std::max<int64_t>(
      1, std::min<int64_t>(at::get_num_threads(), rows / RowGrain(n)));
  RmsNormGradients gradients;
  gradients.x = at::empty({rows, n}, x.options());
  at::Tensor sums;
  if (want_weight) sums = at::zeros({pieces, n}, x.options());
  const float* dyp = dy.const_data_ptr<float>();
  const float* xp = x.const_data_ptr<float>();
  const float* wp = weight.const_data_ptr<float>();
  const float* sp = rstd.const_data_ptr<float>();
  const float* rp = rest.defined() ? rest.const_data_ptr<float>() : nullptr;
  float* dxp = gradients.x.mutable_data_ptr<float>();
  float* dwp = want_weight ? sums.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      const int64_t begin = rows * piece / pieces;
      const int64_t end = rows * (piece + 1) / pieces;
      Simd().rms_norm_backward(dyp + begin * n, xp + begin * n, wp, sp + begin,
                               rp != nullptr ? rp + begin * n : nullptr,
                               end - begin, n, dxp + begin * n,
                               dwp != nullptr ? dwp + piece * n : nullptr);
    }
  });
  if (want_weight) {
    gradients.weight = pieces == 1 ? sums.view({n}) : at::sum(sums, {0});
  }
  return gradients;
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class RmsNormFunction : public torch::autograd::Function<RmsNormFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, double eps) {
    RmsNormResult result = RmsNormForward(x, weight, eps);
    ctx->save_for_backward({x, weight, result.rstd});
    return result.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    RmsNormGradients gradients =
        RmsNormBackward(grads[0], saved[0], saved[1], saved[2], at::Tensor(),
                        ctx->needs_input_grad(1));
    return {gradients.x, gradients.weight, at::Tensor()};
  }
};

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNormFunction::apply(x, weight, eps);
}

}  // namespace kernels
}  // namespace capstan
