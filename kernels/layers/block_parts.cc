// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/block_parts.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/context/recompute.h"
#include "kernels/keep.h"
#include "kernels/layers/block_nodes.h"
#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/gpu_path.h"
#include "kernels/layers/joined_adapters.h"
#include "kernels/layers/joined_linear.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/stored_linear.h"

namespace capstan::kernels {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y = x W^T + bias, plus residual if there is one.
struct LinearCall {
  StoredLinear stored;
  LinearPart part;
  int residual = -1;  // the input
  GradientSink* sink = nullptr;
  int inputs = 0;
};

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs,
                            const LinearCall& call) {
    const at::Tensor& x = inputs[kX];
    ctx->save_for_backward({x});
    Keep(ctx, call);
    const bool add = call.residual >= 0;
    at::Tensor out =
        add ? inputs[call.residual].clone() : Rows(x, call.part.rows());
    ForwardInto(call.part, x, out, add ? 1.0 : 0.0);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    const at::Tensor& dy = grads[0];
    const auto& call = KeptOf<LinearCall>(ctx);
    variable_list out(call.inputs + 1);
    StoredGradients gradients(call.stored, ctx, call.sink);
    const bool input = ctx->needs_input_grad(kX);
    const Fp8BothWays both(input && gradients.WantsMatrix());
    if (input) {
      out[kX] = Rows(x, x.size(1));
      BackwardInto(call.part, dy, out[kX]);
    }
    gradients.Add(call.part, x, dy);
    gradients.MoveTo(&out);
    if (call.residual >= 0) out[call.residual] = dy;
    return out;
  }
};

// (act(gate) * up) Wdown^T, plus x if `add`.
struct MlpCall {
  InputNorm norm;
  Activation activation = Activation::kSilu;
  bool add = true;
  std::vector<StoredLinear> stored;  // the last: down
  LinearPart gate, up, down;
  JoinedLinear joined;      // gate and up, if they are one product
  JoinedAdapters adapters;  // theirs, if they are joined
  int branch = -1;          // the input that is added to x; -1: none
  bool recompute = RecomputesMlp();
  GradientSink* sink = nullptr;
  int inputs = 0;
};

class GatedMlpFunction : public torch::autograd::Function<GatedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs,
                            const MlpCall& call) {
    at::Tensor x = inputs[kX], out;
    const RmsNormResult n = Normed(call, inputs, &x, &out);
    const GateAndUp of = Project(call, n.y);
    ctx->save_for_backward(call.recompute ? variable_list{x, n.rstd}
                           : of.both.defined()
                               ? variable_list{x, n.rstd, of.both}
                               : variable_list{x, n.rstd, of.gate, of.up});
    Keep(ctx, call);
    const at::Tensor activation = Gated(call.activation, of.gate, of.up);
    if (!out.defined()) {
      out = call.add ? x.clone() : Rows(x, call.down.rows());
    }
    ForwardInto(call.down, activation, out, call.add ? 1.0 : 0.0);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto& call = KeptOf<MlpCall>(ctx);
    const at::Tensor &x = saved[0], &rstd = saved[1];
    at::Tensor n;
    if (call.recompute) n = call.norm.Again(x, rstd);
    GateAndUp of = Again(call, n, saved);
    const at::Tensor dy = grads[0].contiguous();
    std::vector<StoredGradients> gradients;
    for (const StoredLinear& stored : call.stored) {
      gradients.emplace_back(stored, ctx, call.sink);
    }
    at::Tensor d_activation = Rows(x, call.down.columns());
    std::optional<Fp8BothWays> both(gradients[call.down.of].WantsMatrix());
    BackwardInto(call.down, dy, d_activation);
    GateAndUp into;
    if (of.both.defined()) into = {call, Rows(x, call.joined.width())};
    GatedGradients d =
        GatedBackward(call.activation, of.gate, of.up, std::move(d_activation),
                      into.gate, into.up);
    of = GateAndUp();
    gradients[call.down.of].Add(call.down, d.activation, dy);
    both.reset();
    d.activation.reset();
    if (!call.recompute) n = call.norm.Again(x, rstd);
    const at::Tensor dn = Rows(x, x.size(1));
    if (into.both.defined()) {
      call.joined.AddGradients(n, into.both, &gradients);
      call.joined.BackwardInto(into.both, dn);
      call.adapters.Backward(n, {into.gate, into.up}, dn, &gradients);
    } else {
      ApartBackward(call, n, d, dn, &gradients);
    }
    variable_list out(call.inputs + 1);
    for (StoredGradients& of_stored : gradients) of_stored.MoveTo(&out);
    call.norm.Backward(ctx, dn, x, rstd, call.add ? dy : at::Tensor(), &out);
    if (call.branch >= 0) out[call.branch] = out[kX];
    return out;
  }

 private:
  // [rows, intermediate] each; joined, they are columns of `both`.
  struct GateAndUp {
    GateAndUp() = default;
    GateAndUp(at::Tensor gate, at::Tensor up, at::Tensor both)
        : gate(std::move(gate)), up(std::move(up)), both(std::move(both)) {}
    GateAndUp(const MlpCall& call, const at::Tensor& both)
        : gate(call.joined.Part(both, 0)),
          up(call.joined.Part(both, 1)),
          both(both) {}
    at::Tensor gate, up, both;
  };

  // norm(x), or of x + branch, which *x becomes, and *out, too, if the product
  // is to be added to it.
  static RmsNormResult Normed(const MlpCall& call, at::TensorList inputs,
                              at::Tensor* x, at::Tensor* out) {
    if (call.branch < 0) return call.norm.Forward(*x);
    AddRmsNormResult made = AddRmsNormForward(
        *x, inputs[call.branch], call.norm.weight, call.norm.eps,
        call.norm.plus_one, call.add ? out : nullptr);
    *x = std::move(made.sum);
    return std::move(made.norm);
  }

  static GateAndUp Project(const MlpCall& call, const at::Tensor& n) {
    if (call.joined.joined()) {
      const at::Tensor both = Rows(n, call.joined.width());
      call.joined.ForwardInto(n, both);
      const GateAndUp of(call, both);
      call.adapters.AddTo(n, {of.gate, of.up});
      return of;
    }
    GateAndUp of = {Rows(n, call.gate.rows()), Rows(n, call.up.rows()), {}};
    const Fp8Unchanged same(n.const_data_ptr());
    ForwardInto(call.gate, n, of.gate);
    ForwardInto(call.up, n, of.up);
    call.adapters.AddTo(n, {of.gate, of.up});
    return of;
  }

  // What forward kept, or n's.
  static GateAndUp Again(const MlpCall& call, const at::Tensor& n,
                         const variable_list& saved) {
    if (call.recompute) return Project(call, n);
    return call.joined.joined() ? GateAndUp(call, saved[2])
                                : GateAndUp{saved[2], saved[3], {}};
  }

  static void ApartBackward(const MlpCall& call, const at::Tensor& n,
                            const GatedGradients& d, const at::Tensor& dn,
                            std::vector<StoredGradients>* gradients) {
    const Fp8Unchanged same(n.const_data_ptr());
    const auto backward = [&](const LinearPart& part, const at::Tensor& dy,
                              double beta) {
      StoredGradients& of = (*gradients)[part.of];
      const Fp8BothWays both(of.WantsMatrix());
      of.Add(part, n, dy);
      const at::Tensor of_sum = GradientToSum(part, dy);
      LinearBackwardInto(dn, of_sum, part.weight, beta);
      return of_sum;
    };
    const at::Tensor gate = backward(call.gate, d.gate, /*beta=*/0.0);
    const at::Tensor up = backward(call.up, d.up, /*beta=*/1.0);
    AdapterBackward(call.gate.adapter, gate).AddTo(dn);
    AdapterBackward(call.up.adapter, up).AddTo(dn);
    call.adapters.Backward(n, {d.gate, d.up}, dn, gradients);
  }
};

// mixed Woutput^T + bias + adapter, plus residual if defined.
at::Tensor Output(const at::Tensor& mixed, const at::Tensor& residual,
                  const TransformerBlockWeights& weights,
                  const TransformerBlockOptions& options) {
  LinearCall call;
  BlockLinears linears;
  linears.AddOutput(weights, options);
  call.stored = std::move(linears.stored[0]);
  call.part = std::move(linears.parts[kOutputMatrix]);
  call.sink = SinkFor(mixed, options);
  NodeInputs inputs;
  inputs.Add(mixed);
  call.stored.AddTo(&inputs);
  call.residual = inputs.Add(residual);
  call.inputs = static_cast<int>(inputs.tensors().size());
  return LinearFunction::apply(inputs.tensors(), call);
}

// residual + RmsNorm(branch).
at::Tensor AddNormalised(const at::Tensor& residual, const at::Tensor& branch,
                         const at::Tensor& norm, int parameter,
                         const TransformerBlockOptions& options) {
  return residual + RmsNorm(branch, norm, options.eps, options.norm_plus_one,
                            {options.sink, parameter});
}

}  // namespace

BlockLinears::BlockLinears(const TransformerBlockWeights& weights,
                           const TransformerBlockOptions& options) {
  AddAttention(weights.attention, options);
  AddOutput(weights, options);
  if (weights.mlp.down.defined()) AddMlp(weights.mlp, options);
}

void BlockLinears::Add(BlockMatrix matrix, const Weight& weight,
                       const at::Tensor& bias, const Adapter& adapter,
                       const TransformerBlockOptions& options) {
  stored.push_back({weight, bias, adapter, options.parameters[matrix],
                    options.bias_parameters[matrix]});
  if (adapter.dora()) {
    at::Tensor* const known = adapter.known_norms;
    at::Tensor& norms = stored.back().adapter.norms;
    norms = known != nullptr && known->defined()
                ? *known
                : AdaptedNorms(weight, adapter);
    if (known != nullptr) *known = norms;
  }
  parts[matrix] = {stored.back(), static_cast<int>(stored.size()) - 1};
}

void BlockLinears::Split(BlockMatrix matrix, int64_t begin, int64_t rows) {
  parts[matrix] = {stored.back(), static_cast<int>(stored.size()) - 1, begin,
                   rows};
}

void BlockLinears::AddAttention(const AttentionWeights& w,
                                const TransformerBlockOptions& options) {
  stored.reserve(kBlockMatrices);
  Add(kQueryMatrix, w.q, w.q_bias, w.adapters[0], options);
  if (w.k.defined()) {
    Add(kKeyMatrix, w.k, w.k_bias, w.adapters[1], options);
    Add(kValueMatrix, w.v, w.v_bias, w.adapters[2], options);
    return;
  }
  const AttentionShape& shape = options.shape;
  const int64_t q = shape.heads * shape.head_dim;
  const int64_t kv = shape.kv_heads * shape.head_dim;
  Split(kQueryMatrix, 0, q);
  Split(kKeyMatrix, q, kv);
  Split(kValueMatrix, q + kv, kv);
}

void BlockLinears::AddOutput(const TransformerBlockWeights& w,
                             const TransformerBlockOptions& options) {
  Add(kOutputMatrix, w.output, w.output_bias, w.output_adapter, options);
}

void BlockLinears::AddMlp(const GatedMlpWeights& w,
                          const TransformerBlockOptions& options) {
  stored.reserve(stored.size() + 3);
  Add(kGateMatrix, w.gate, w.gate_bias, w.adapters[0], options);
  if (w.up.defined()) {
    Add(kUpMatrix, w.up, w.up_bias, w.adapters[1], options);
  } else {
    const int64_t inner = w.gate.rows() / 2;
    Split(kGateMatrix, 0, inner);
    Split(kUpMatrix, inner, inner);
  }
  Add(kDownMatrix, w.down, w.down_bias, w.adapters[2], options);
}

at::Tensor AttentionOutput(const at::Tensor& mixed, const at::Tensor& x,
                           const TransformerBlockWeights& weights,
                           const TransformerBlockOptions& options) {
  const at::Tensor& norm = weights.attention_post_norm;
  if (!norm.defined()) return Output(mixed, x, weights, options);
  return AddNormalised(x, AttentionBranch(mixed, weights, options), norm,
                       options.norm_parameters.attention_post, options);
}

at::Tensor AttentionBranch(const at::Tensor& mixed,
                           const TransformerBlockWeights& weights,
                           const TransformerBlockOptions& options) {
  return Output(mixed, at::Tensor(), weights, options);
}

at::Tensor GatedMlp(const at::Tensor& x, const GatedMlpWeights& weights,
                    const TransformerBlockOptions& options,
                    const at::Tensor& branch) {
  TORCH_CHECK(!branch.defined() || weights.norm.defined(),
              "a branch is added where there is a norm");
  MlpCall call;
  call.norm = {weights.norm,
               options.eps,
               options.norm_plus_one,
               {options.sink, options.norm_parameters.mlp}};
  call.activation = options.activation;
  call.add = !weights.post_norm.defined();
  BlockLinears linears;
  linears.AddMlp(weights, options);
  call.stored = std::move(linears.stored);
  call.gate = std::move(linears.parts[kGateMatrix]);
  call.up = std::move(linears.parts[kUpMatrix]);
  call.down = std::move(linears.parts[kDownMatrix]);
  if (OnGpuPath(x)) {
    call.adapters = JoinedAdapters({&call.gate, &call.up});
    call.joined = JoinedLinear({call.gate, call.up});
  }
  call.sink = SinkFor(x, options);
  NodeInputs inputs = InputsOf(x, &call.norm, &call.stored);
  call.branch = inputs.Add(branch);
  call.inputs = static_cast<int>(inputs.tensors().size());
  const at::Tensor out = GatedMlpFunction::apply(inputs.tensors(), call);
  return call.add ? out
                  : AddNormalised(x, out, weights.post_norm,
                                  options.norm_parameters.mlp_post, options);
}

// residual + RmsNorm(branch), of which the branch and rstd stay.
void PlanAddNormalised(const TransformerBlockShape& s, MemoryLedger* ledger) {
  PlanRmsNorm(s.rows, s.hidden, s.dtype, ledger);
  ledger->Take(s.x());
  ledger->Free(s.x());
}

// Leaves the branch's gradient besides the sum's, which is the residual's.
void PlanAddNormalisedBackward(const TransformerBlockShape& s,
                               MemoryLedger* ledger) {
  PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, ledger);
  ledger->Free(s.x() + s.rstd() + s.norm_gradient());
}

void PlanAttentionOutput(const TransformerBlockShape& s, MemoryLedger* ledger) {
  ledger->Take(s.x());
  ledger->Pass(s.Linear(kOutputMatrix).forward);
  if (s.post_norms) PlanAddNormalised(s, ledger);
}

void PlanAttentionOutputBackward(const TransformerBlockShape& s,
                                 MemoryLedger* ledger) {
  if (s.post_norms) PlanAddNormalisedBackward(s, ledger);
  const LinearMemory output = s.Linear(kOutputMatrix);
  ledger->Take(s.q());
  ledger->Pass(output.gradients + output.backward);
  if (s.post_norms) ledger->Free(s.x());
}

void PlanGatedMlp(const TransformerBlockShape& s, MemoryLedger* ledger) {
  // On GPUs attention's branch, until the sum with it takes its place.
  const bool branch = s.gpu && s.input_norms && !s.post_norms;
  if (branch) ledger->Take(s.x());
  if (s.input_norms) PlanRmsNorm(s.rows, s.hidden, s.dtype, ledger);
  ledger->Take(2 * s.inner());  // gate, up
  ledger->Pass(s.Linear(kUpMatrix).forward);
  ledger->Take(s.inner() + s.x());  // the activation, the output
  ledger->Pass(s.Linear(kDownMatrix).forward);
  ledger->Free(s.inner() + (s.input_norms ? s.x() : 0));  // the activation, n
  if (RecomputesMlp()) ledger->Free(2 * s.inner());
  if (branch) ledger->Free(s.x());
  if (s.post_norms) PlanAddNormalised(s, ledger);
}

void PlanGatedMlpBackward(const TransformerBlockShape& s,
                          MemoryLedger* ledger) {
  const LinearMemory gate = s.Linear(kGateMatrix), up = s.Linear(kUpMatrix);
  const LinearMemory down = s.Linear(kDownMatrix);
  if (s.post_norms) PlanAddNormalisedBackward(s, ledger);
  const int64_t n = s.input_norms ? s.x() : 0;
  const bool again = RecomputesMlp();
  if (again) {
    ledger->Take(n + 2 * s.inner());
    ledger->Pass(up.forward);
  }
  ledger->Take(3 * s.inner());  // d of the activation, gate and up
  if (again) ledger->Free(2 * s.inner());
  ledger->Take(down.gradients);
  ledger->Pass(down.backward);
  ledger->Free(s.inner());
  if (!again) ledger->Take(n);
  ledger->Take(gate.gradients + up.gradients + s.x());
  ledger->Pass(up.backward);
  if (s.input_norms) {
    PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, ledger);
  } else {
    ledger->Take(s.x());
  }
  ledger->Free(2 * s.inner() + n + 2 * s.x());  // d, n, dn, dy
  if (s.post_norms) ledger->Free(s.x());
  // What was kept, x included.
  ledger->Free(s.x() + (again ? 0 : 2 * s.inner()) +
               (s.input_norms ? s.rstd() : 0));
  // Gradients of parameters live until backward's next operator.
  ledger->Free(gate.gradients + up.gradients + down.gradients +
               (s.input_norms ? s.norm_gradient() : 0));
}

}  // namespace capstan::kernels
