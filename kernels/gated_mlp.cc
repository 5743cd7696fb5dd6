// SPDX-License-Identifier: Apache-2.0
#include "kernels/gated_mlp.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/linear.h"
#include "kernels/rms_norm.h"
#include "kernels/swiglu.h"

namespace capstan {
namespace kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class GatedMlpFunction : public torch::autograd::Function<GatedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& norm, const at::Tensor& w_gate,
                            const at::Tensor& w_up, const at::Tensor& w_down,
                            double eps) {
    const RmsNormResult n = RmsNormForward(x, norm, eps);
    const at::Tensor gate = MatMul(n.y, w_gate.t());
    const at::Tensor up = MatMul(n.y, w_up.t());
    ctx->save_for_backward({x, norm, w_gate, w_up, w_down, n.rstd, gate, up});
    at::Tensor out = x.clone();
    MatMulInto(out, SwiGlu(gate, up), w_down.t(), /*beta=*/1.0);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &norm = saved[1], &w_gate = saved[2];
    const at::Tensor &w_up = saved[3], &w_down = saved[4], &rstd = saved[5];
    const at::Tensor &gate = saved[6], &up = saved[7], &dy = grads[0];
    variable_list out(6);
    SwiGluGradients d = SwiGluBackward(gate, up, MatMul(dy, w_down));
    if (ctx->needs_input_grad(4)) {
      out[4] = WeightGradient({}, dy, d.activation);
    }
    d.activation.reset();
    const at::Tensor n = RmsNormAgain(x, norm, rstd);
    if (ctx->needs_input_grad(2)) out[2] = WeightGradient({}, d.gate, n);
    if (ctx->needs_input_grad(3)) out[3] = WeightGradient({}, d.up, n);
    at::Tensor dn = MatMul(d.gate, w_gate);
    MatMulInto(dn, d.up, w_up, /*beta=*/1.0);
    RmsNormGradients gradients =
        RmsNormBackward(dn, x, norm, rstd, dy, ctx->needs_input_grad(1));
    out[0] = gradients.x;
    out[1] = gradients.weight;
    return out;
  }
};

}  // namespace

at::Tensor GatedMlp(const at::Tensor& x, const GatedMlpWeights& weights,
                    double eps) {
  return GatedMlpFunction::apply(x, weights.norm, weights.gate, weights.up,
                                 weights.down, eps);
}

}  // namespace kernels
}  // namespace capstan
