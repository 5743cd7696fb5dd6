// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/attention_input.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/rope.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AttentionInputFunction
    : public torch::autograd::Function<AttentionInputFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const at::Tensor& norm, const at::Tensor& wq,
                               const at::Tensor& wk, const at::Tensor& wv,
                               const at::Tensor& rope_table,
                               at::TensorList adapter_tensors, double eps,
                               c10::ArrayRef<Adapter> adapters) {
    const RmsNormResult n = RmsNormForward(x, norm, eps);
    variable_list out;
    for (const at::Tensor& weight : {wq, wk, wv}) {
      out.push_back(MatMul(n.y, weight.t()));
      AddAdapter(adapters[out.size() - 1], n.y, out.back());
    }
    ApplyRope(rope_table, RopeDirection::kForward, out[0]);
    ApplyRope(rope_table, RopeDirection::kForward, out[1]);
    ctx->save_for_backward({x, norm, wq, wk, wv, n.rstd, rope_table});
    ctx->saved_data["adapters"] = KeepAdapters(adapters);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &norm = saved[1], &rstd = saved[5];
    const at::Tensor& rope_table = saved[6];
    const auto kept = AdaptersIn(ctx->saved_data["adapters"]);
    const at::Tensor n = RmsNormAgain(x, norm, rstd);
    at::Tensor dn;
    variable_list out(6);
    for (int i = 0; i < 3; ++i) {  // q, k, v
      const at::Tensor& weight = saved[2 + i];
      // Newly made by attention, and used only here.
      at::Tensor dy = grads[i].contiguous();
      if (i < 2) ApplyRope(rope_table, RopeDirection::kBackward, dy);
      if (ctx->needs_input_grad(2 + i)) {
        out[2 + i] = WeightGradient({}, dy, n);
      }
      if (i == 0) {
        dn = MatMul(dy, weight);
      } else {
        MatMulInto(dn, dy, weight, /*beta=*/1.0);
      }
      const AdapterBackward adapter(kept->adapters[i], dy);
      adapter.AddTo(dn);
      adapter.AppendWeights(n, &out);
    }
    RmsNormGradients gradients = RmsNormBackward(
        dn, x, norm, rstd, at::Tensor(), ctx->needs_input_grad(1));
    out[0] = gradients.x;
    out[1] = gradients.weight;
    out.resize(out.size() + 2);  // eps, adapters
    return out;
  }
};

}  // namespace

void PlanAttentionInput(const TransformerBlockShape& s, MemoryLedger* ledger) {
  PlanRmsNorm(s.rows, s.hidden, s.dtype, ledger);
  ledger->Take(s.q() + 2 * s.kv());
  ledger->Pass(s.Linear(kValueMatrix).forward);
  ledger->Free(s.x());  // n
}

void PlanAttentionInputBackward(const TransformerBlockShape& s,
                                MemoryLedger* ledger) {
  PlanRmsNormAgain(s.rows, s.hidden, s.dtype, ledger);
  const LinearMemory value = s.Linear(kValueMatrix);
  ledger->Take(s.x() + s.Linear(kQueryMatrix).gradients +
               s.Linear(kKeyMatrix).gradients + value.gradients);
  ledger->Pass(value.backward);
  PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, ledger);
}

QueryKeyValue AttentionInput(const at::Tensor& x,
                             const AttentionWeights& weights, double eps,
                             const at::Tensor& rope_table) {
  const variable_list out = AttentionInputFunction::apply(
      x, weights.norm, weights.q, weights.k, weights.v, rope_table,
      at::TensorList(AdapterTensors(weights.adapters)), eps,
      c10::ArrayRef<Adapter>(weights.adapters));
  return {out[0], out[1], out[2]};
}

}  // namespace capstan::kernels
