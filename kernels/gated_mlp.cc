// SPDX-License-Identifier: Apache-2.0
#include "kernels/gated_mlp.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
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
    const at::Tensor gate = LinearForward(n.y, w_gate);
    const at::Tensor up = LinearForward(n.y, w_up);
    ctx->save_for_backward({x, norm, w_gate, w_up, w_down, n.rstd, gate, up});
    return at::addmm(x, SwiGlu(gate, up), w_down.t());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &norm = saved[1], &w_gate = saved[2];
    const at::Tensor &w_up = saved[3], &w_down = saved[4], &rstd = saved[5];
    const at::Tensor &gate = saved[6], &up = saved[7], &dy = grads[0];
    variable_list out(6);
    SwiGluGradients d = SwiGluBackward(gate, up, at::mm(dy, w_down));
    if (ctx->needs_input_grad(4)) {
      out[4] = WeightGradient(w_down, dy, d.activation);
    }
    d.activation.reset();
    const at::Tensor n = RmsNormAgain(x, norm, rstd);
    if (ctx->needs_input_grad(2)) out[2] = WeightGradient(w_gate, d.gate, n);
    if (ctx->needs_input_grad(3)) out[3] = WeightGradient(w_up, d.up, n);
    at::Tensor dn = at::mm(d.gate, w_gate);
    dn.addmm_(d.up, w_up);
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
