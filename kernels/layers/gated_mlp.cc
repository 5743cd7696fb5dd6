// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/gated_mlp.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/swiglu.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class GatedMlpFunction : public torch::autograd::Function<GatedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& norm, const at::Tensor& w_gate,
                            const at::Tensor& w_up, const at::Tensor& w_down,
                            at::TensorList adapter_tensors, double eps,
                            c10::ArrayRef<Adapter> adapters) {
    const RmsNormResult n = RmsNormForward(x, norm, eps);
    const at::Tensor gate = MatMul(n.y, w_gate.t());
    AddAdapter(adapters[0], n.y, gate);
    const at::Tensor up = MatMul(n.y, w_up.t());
    AddAdapter(adapters[1], n.y, up);
    ctx->save_for_backward({x, norm, w_gate, w_up, w_down, n.rstd, gate, up});
    ctx->saved_data["adapters"] = KeepAdapters(adapters);
    const at::Tensor activation = SwiGlu(gate, up);
    at::Tensor out = x.clone();
    MatMulInto(out, activation, w_down.t(), /*beta=*/1.0);
    AddAdapter(adapters[2], activation, out);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &norm = saved[1], &w_gate = saved[2];
    const at::Tensor &w_up = saved[3], &w_down = saved[4], &rstd = saved[5];
    const at::Tensor &gate = saved[6], &up = saved[7];
    const at::Tensor dy = grads[0].contiguous();
    const auto kept = AdaptersIn(ctx->saved_data["adapters"]);
    variable_list out(5), of_down;
    const AdapterBackward down(kept->adapters[2], dy);
    at::Tensor d_activation = MatMul(dy, w_down);
    down.AddTo(d_activation);
    SwiGluGradients d = SwiGluBackward(gate, up, std::move(d_activation));
    if (ctx->needs_input_grad(4)) {
      out[4] = WeightGradient({}, dy, d.activation);
    }
    down.AppendWeights(d.activation, &of_down);
    d.activation.reset();
    const at::Tensor n = RmsNormAgain(x, norm, rstd);
    if (ctx->needs_input_grad(2)) out[2] = WeightGradient({}, d.gate, n);
    if (ctx->needs_input_grad(3)) out[3] = WeightGradient({}, d.up, n);
    at::Tensor dn = MatMul(d.gate, w_gate);
    MatMulInto(dn, d.up, w_up, /*beta=*/1.0);
    for (int i = 0; i < 2; ++i) {
      const AdapterBackward adapter(kept->adapters[i], i == 0 ? d.gate : d.up);
      adapter.AddTo(dn);
      adapter.AppendWeights(n, &out);
    }
    out.insert(out.end(), of_down.begin(), of_down.end());
    RmsNormGradients gradients =
        RmsNormBackward(dn, x, norm, rstd, dy, ctx->needs_input_grad(1));
    out[0] = gradients.x;
    out[1] = gradients.weight;
    out.resize(out.size() + 2);  // eps, adapters
    return out;
  }
};

}  // namespace

void PlanGatedMlp(const TransformerBlockShape& s, MemoryLedger* ledger) {
  PlanRmsNorm(s.rows, s.hidden, s.dtype, ledger);
  ledger->Take(2 * s.inner());  // gate, up
  ledger->Pass(s.Linear(kUpMatrix).forward);
  ledger->Take(s.inner() + s.x());  // the activation, the output
  ledger->Pass(s.Linear(kDownMatrix).forward);
  ledger->Free(s.inner() + s.x());  // the activation, n
}

void PlanGatedMlpBackward(const TransformerBlockShape& s,
                          MemoryLedger* ledger) {
  const LinearMemory gate = s.Linear(kGateMatrix), up = s.Linear(kUpMatrix);
  const LinearMemory down = s.Linear(kDownMatrix);
  ledger->Take(3 * s.inner());  // d of the activation, gate and up
  ledger->Take(down.gradients);
  ledger->Pass(down.backward);
  ledger->Free(s.inner());
  PlanRmsNormAgain(s.rows, s.hidden, s.dtype, ledger);
  ledger->Take(gate.gradients + up.gradients + s.x());
  ledger->Pass(up.backward);
  PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, ledger);
  ledger->Free(2 * s.inner() + 3 * s.x());         // d, n, dn, dy
  ledger->Free(s.x() + 2 * s.inner() + s.rstd());  // what was kept, x included
  // Gradients of parameters live until backward's next operator.
  ledger->Free(gate.gradients + up.gradients + down.gradients +
               s.norm_gradient());
}

at::Tensor GatedMlp(const at::Tensor& x, const GatedMlpWeights& weights,
                    double eps) {
  return GatedMlpFunction::apply(
      x, weights.norm, weights.gate, weights.up, weights.down,
      at::TensorList(AdapterTensors(weights.adapters)), eps,
      c10::ArrayRef<Adapter>(weights.adapters));
}

}  // namespace capstan::kernels
