// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/norm_rope.h"

#include <utility>

#include "kernels/layers/block_parts.h"

namespace capstan::kernels {
namespace {

// x [rows, width] as its norms see it: without a copy, if rows are apart.
at::Tensor ByNorm(const at::Tensor& x, int64_t n) {
  return x.is_contiguous() ? x.view({-1, n}) : x.view({x.size(0), -1, n});
}

}  // namespace

RmsNormResult NormRope::Forward(const at::Tensor& x) const {
  RmsNormResult made =
      RmsNormForward(ByNorm(x, weight.size(0)), weight, eps, plus_one);
  made.y = made.y.view(x.sizes());
  ApplyRope(rope_table, RopeDirection::kForward, head_dim, made.y);
  return made;
}

at::Tensor NormRope::Backward(torch::autograd::AutogradContext* ctx,
                              at::Tensor dy, const at::Tensor& x,
                              const at::Tensor& rstd, const at::Tensor& dx,
                              torch::autograd::variable_list* gradients) const {
  ApplyRope(rope_table, RopeDirection::kBackward, head_dim, dy);
  const int64_t n = weight.size(0);
  const bool wanted = ctx->needs_input_grad(input);
  WeightPlace::AnyPlace to;
  if (wanted) to = place.OpenOnGpu(weight);
  RmsNormTarget into = {dx, std::move(to.gradient), to.add};
  at::Tensor by_norm = ByNorm(x, n);
  if (dx.defined()) {  // alike, for one stride between groups each
    by_norm = x.view({x.size(0), -1, n});
    into.x = dx.view({dx.size(0), -1, n});
  }
  RmsNormGradients made =
      RmsNormBackward(dy.view({-1, n}), by_norm, weight, rstd, at::Tensor(),
                      wanted, plus_one, std::move(into));
  if (!to.wide) (*gradients)[input] = std::move(made.weight);
  return made.x.view(x.sizes());
}

}  // namespace capstan::kernels
