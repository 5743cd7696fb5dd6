// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

namespace capstan {
namespace kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class LinearAddFunction : public torch::autograd::Function<LinearAddFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight,
                            const at::Tensor& residual) {
    ctx->save_for_backward({x, weight});
    return at::addmm(residual, x, weight.t());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &dy = grads[0];
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(0)) dx = at::mm(dy, weight);
    if (ctx->needs_input_grad(1)) dw = WeightGradient(weight, dy, x);
    return {dx, dw, dy};
  }
};

}  // namespace

at::Tensor LinearAdd(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& residual) {
  return LinearAddFunction::apply(x, weight, residual);
}

at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight) {
  return at::mm(x, weight.t());
}

at::Tensor WeightGradient(const at::Tensor&, const at::Tensor& dy,
                          const at::Tensor& x) {
  return at::mm(dy.t(), x);
}

}  // namespace kernels
}  // namespace capstan
