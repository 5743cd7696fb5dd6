// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/block_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <utility>
#include <vector>

#include "kernels/keep.h"
#include "kernels/layers/gpu_path.h"
#include "kernels/layers/joined_linear.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/stored_linear.h"

namespace capstan::kernels {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kX = 0;  // x is each node's first input

// The norm before a branch; without a weight, none.
struct InputNorm {
  at::Tensor weight;
  double eps = 0.0;
  bool plus_one = false;
  int input = -1;  // of the node

  // The normalised rows, and what backward needs.
  RmsNormResult Forward(const at::Tensor& x) const {
    if (!weight.defined()) return {x, at::Tensor()};
    return RmsNormForward(x, weight, eps, plus_one);
  }
  at::Tensor Again(const at::Tensor& x, const at::Tensor& rstd) const {
    return weight.defined() ? RmsNormAgain(x, weight, rstd, plus_one) : x;
  }
  // To x, plus `residual` if defined; and to the weight.
  void Backward(AutogradContext* ctx, const at::Tensor& dn, const at::Tensor& x,
                const at::Tensor& rstd, const at::Tensor& residual,
                variable_list* gradients) const {
    if (!weight.defined()) {
      (*gradients)[kX] = residual.defined() ? dn + residual : dn;
      return;
    }
    RmsNormGradients made = RmsNormBackward(
        dn, x, weight, rstd, residual, ctx->needs_input_grad(input), plus_one);
    (*gradients)[kX] = std::move(made.x);
    (*gradients)[input] = std::move(made.weight);
  }
};

at::Tensor Rows(const at::Tensor& like, int64_t width) {
  return at::empty({like.size(0), width}, like.options().requires_grad(false));
}

// The same memory as a tensor of its own, an output of a node.
at::Tensor Result(const at::Tensor& t) { return t.variable_data(); }

// y_i = n W_i^T with n = norm(x), of which the first `rotated` get a rope.
struct ProjectionsCall {
  InputNorm norm;
  std::vector<StoredLinear> stored;
  std::vector<LinearPart> parts;
  JoinedLinear joined;  // the parts, if they are one product
  int rotated = 0;
  at::Tensor rope_table;
  int64_t head_dim = 0;
  bool pass_x = false;  // whether x is the last output, too
  GradientSink* sink = nullptr;
  int inputs = 0;  // of the node

  void Rotate(RopeDirection direction, at::Tensor y) const {
    ApplyRope(rope_table, direction, head_dim, y);
  }
};

class ProjectionsFunction
    : public torch::autograd::Function<ProjectionsFunction> {
 public:
  static variable_list forward(AutogradContext* ctx, at::TensorList inputs,
                               const ProjectionsCall& call) {
    const at::Tensor& x = inputs[kX];
    const RmsNormResult n = call.norm.Forward(x);
    variable_list out =
        call.joined.joined() ? Joined(call, n.y) : Apart(call, n.y);
    if (call.pass_x) out.push_back(Result(x));
    ctx->save_for_backward({x, n.rstd});
    Keep(ctx, call);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &rstd = saved[1];
    const auto& call = KeptOf<ProjectionsCall>(ctx);
    const at::Tensor n = call.norm.Again(x, rstd);
    std::vector<StoredGradients> gradients;
    for (const StoredLinear& stored : call.stored) {
      gradients.emplace_back(stored, ctx, call.sink);
    }
    const at::Tensor dn = Rows(x, x.size(1));
    if (call.joined.joined()) {
      JoinedBackward(call, n, grads, dn, &gradients);
    } else {
      ApartBackward(call, n, grads, dn, &gradients);
    }
    variable_list out(call.inputs + 1);  // and the call
    for (StoredGradients& of : gradients) of.MoveTo(&out);
    call.norm.Backward(ctx, dn, x, rstd,
                       call.pass_x ? grads.back() : at::Tensor(), &out);
    return out;
  }

 private:
  static variable_list Apart(const ProjectionsCall& call, const at::Tensor& n) {
    variable_list out;
    for (const LinearPart& part : call.parts) {
      out.push_back(Rows(n, part.rows()));
      ForwardInto(part, n, out.back());
    }
    for (int i = 0; i < call.rotated; ++i) {
      call.Rotate(RopeDirection::kForward, out[i]);
    }
    return out;
  }

  static variable_list Joined(const ProjectionsCall& call,
                              const at::Tensor& n) {
    const JoinedLinear& joined = call.joined;
    const at::Tensor y = Rows(n, joined.width());
    joined.ForwardInto(n, y);
    const at::Tensor together = joined.FirstParts(y, call.rotated);
    if (together.defined()) call.Rotate(RopeDirection::kForward, together);
    variable_list out;
    for (size_t i = 0; i < call.parts.size(); ++i) {
      const at::Tensor part = joined.Part(y, static_cast<int>(i));
      if (!together.defined() && static_cast<int>(i) < call.rotated) {
        call.Rotate(RopeDirection::kForward, part);
      }
      out.push_back(Result(part));
    }
    return out;
  }

  static void ApartBackward(const ProjectionsCall& call, const at::Tensor& n,
                            const variable_list& grads, const at::Tensor& dn,
                            std::vector<StoredGradients>* gradients) {
    for (size_t i = 0; i < call.parts.size(); ++i) {
      const LinearPart& part = call.parts[i];
      // Newly made by attention, and used only here.
      const at::Tensor dy = grads[i].contiguous();
      if (static_cast<int>(i) < call.rotated) {
        call.Rotate(RopeDirection::kBackward, dy);
      }
      (*gradients)[part.of].Add(part, n, dy);
      BackwardInto(part, dy, dn, i == 0 ? 0.0 : 1.0);
    }
  }

  static void JoinedBackward(const ProjectionsCall& call, const at::Tensor& n,
                             const variable_list& grads, const at::Tensor& dn,
                             std::vector<StoredGradients>* gradients) {
    const at::Tensor dy = Rows(n, call.joined.width());
    for (size_t i = 0; i < call.parts.size(); ++i) {
      at::Tensor part = call.joined.Part(dy, static_cast<int>(i));
      if (static_cast<int>(i) < call.rotated) {
        ApplyRopeInto(call.rope_table, RopeDirection::kBackward, call.head_dim,
                      grads[i].contiguous(), part);
      } else {
        part.copy_(grads[i]);
      }
    }
    call.joined.BackwardInto(dy, dn);
    call.joined.AddGradients(n, dy, gradients);
  }
};

// The norm of queries or keys, then rope.
struct NormRopeCall {
  TransformerBlockOptions options;
};

class NormRopeFunction : public torch::autograd::Function<NormRopeFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight,
                            const NormRopeCall& call) {
    const TransformerBlockOptions& o = call.options;
    RmsNormResult n = RmsNormForward(x.view({-1, weight.size(0)}), weight,
                                     o.eps, o.norm_plus_one);
    at::Tensor y = n.y.view(x.sizes());
    ApplyRope(o.rope_table, RopeDirection::kForward, o.shape.head_dim, y);
    ctx->save_for_backward({x, weight, n.rstd});
    Keep(ctx, call);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const TransformerBlockOptions& o = KeptOf<NormRopeCall>(ctx).options;
    // Newly made by attention, and used only here.
    at::Tensor dy = grads[0].contiguous();
    ApplyRope(o.rope_table, RopeDirection::kBackward, o.shape.head_dim, dy);
    const std::array<int64_t, 2> by_norm = {-1, weight.size(0)};
    RmsNormGradients made = RmsNormBackward(
        dy.view(by_norm), x.view(by_norm), weight, rstd, at::Tensor(),
        ctx->needs_input_grad(1), o.norm_plus_one);
    return {made.x.view(x.sizes()), made.weight, at::Tensor()};
  }
};

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
    if (ctx->needs_input_grad(kX)) {
      out[kX] = Rows(x, x.size(1));
      BackwardInto(call.part, dy, out[kX]);
    }
    StoredGradients gradients(call.stored, ctx, call.sink);
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
  JoinedLinear joined;  // gate and up, if they are one product
  int branch = -1;      // the input that is added to x; -1: none
  GradientSink* sink = nullptr;
  int inputs = 0;
};

class GatedMlpFunction : public torch::autograd::Function<GatedMlpFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, at::TensorList inputs,
                            const MlpCall& call) {
    at::Tensor x = inputs[kX];
    const RmsNormResult n = Normed(call, inputs, &x);
    const GateAndUp of = Project(call, n.y);
    ctx->save_for_backward(of.both.defined()
                               ? variable_list{x, n.rstd, of.both}
                               : variable_list{x, n.rstd, of.gate, of.up});
    Keep(ctx, call);
    const at::Tensor activation = Gated(call.activation, of.gate, of.up);
    at::Tensor out = call.add ? x.clone() : Rows(x, call.down.rows());
    ForwardInto(call.down, activation, out, call.add ? 1.0 : 0.0);
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const auto& call = KeptOf<MlpCall>(ctx);
    const at::Tensor &x = saved[0], &rstd = saved[1];
    const GateAndUp of = call.joined.joined()
                             ? GateAndUp(call, saved[2])
                             : GateAndUp{saved[2], saved[3], {}};
    const at::Tensor dy = grads[0].contiguous();
    std::vector<StoredGradients> gradients;
    for (const StoredLinear& stored : call.stored) {
      gradients.emplace_back(stored, ctx, call.sink);
    }
    at::Tensor d_activation = Rows(x, call.down.columns());
    BackwardInto(call.down, dy, d_activation);
    GateAndUp into;
    if (of.both.defined()) into = {call, Rows(x, call.joined.width())};
    GatedGradients d =
        GatedBackward(call.activation, of.gate, of.up, std::move(d_activation),
                      into.gate, into.up);
    gradients[call.down.of].Add(call.down, d.activation, dy);
    d.activation.reset();
    const at::Tensor n = call.norm.Again(x, rstd);
    const at::Tensor dn = Rows(x, x.size(1));
    if (into.both.defined()) {
      call.joined.AddGradients(n, into.both, &gradients);
      call.joined.BackwardInto(into.both, dn);
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

  // norm(x), or of x + branch, which *x becomes.
  static RmsNormResult Normed(const MlpCall& call, at::TensorList inputs,
                              at::Tensor* x) {
    if (call.branch < 0) return call.norm.Forward(*x);
    AddRmsNormResult made =
        AddRmsNormForward(*x, inputs[call.branch], call.norm.weight,
                          call.norm.eps, call.norm.plus_one);
    *x = std::move(made.sum);
    return std::move(made.norm);
  }

  static GateAndUp Project(const MlpCall& call, const at::Tensor& n) {
    if (call.joined.joined()) {
      const at::Tensor both = Rows(n, call.joined.width());
      call.joined.ForwardInto(n, both);
      return {call, both};
    }
    GateAndUp of = {Rows(n, call.gate.rows()), Rows(n, call.up.rows()), {}};
    ForwardInto(call.gate, n, of.gate);
    ForwardInto(call.up, n, of.up);
    return of;
  }

  static void ApartBackward(const MlpCall& call, const at::Tensor& n,
                            const GatedGradients& d, const at::Tensor& dn,
                            std::vector<StoredGradients>* gradients) {
    (*gradients)[call.gate.of].Add(call.gate, n, d.gate);
    (*gradients)[call.up.of].Add(call.up, n, d.up);
    LinearBackwardInto(dn, d.gate, call.gate.weight);
    LinearBackwardInto(dn, d.up, call.up.weight, /*beta=*/1.0);
    AdapterBackward(call.gate.adapter, d.gate).AddTo(dn);
    AdapterBackward(call.up.adapter, d.up).AddTo(dn);
  }
};

// Adds the stored ones and the norm to a node's inputs, after x.
NodeInputs InputsOf(const at::Tensor& x, InputNorm* norm,
                    std::vector<StoredLinear>* stored) {
  NodeInputs inputs;
  inputs.Add(x);
  norm->input = inputs.Add(norm->weight);
  for (StoredLinear& of : *stored) of.AddTo(&inputs);
  return inputs;
}

// mixed Woutput^T + bias + adapter, plus residual if defined.
at::Tensor Output(const at::Tensor& mixed, const at::Tensor& residual,
                  const TransformerBlockWeights& weights,
                  const TransformerBlockOptions& options) {
  LinearCall call;
  call.stored = {weights.output, weights.output_bias, weights.output_adapter,
                 options.parameters[kOutputMatrix]};
  call.part = {call.stored, 0};
  if (OnGpuPath(mixed)) call.sink = options.sink;
  NodeInputs inputs;
  inputs.Add(mixed);
  call.stored.AddTo(&inputs);
  call.residual = inputs.Add(residual);
  call.inputs = static_cast<int>(inputs.tensors().size());
  return LinearFunction::apply(inputs.tensors(), call);
}

// residual + RmsNorm(branch).
at::Tensor AddNormalised(const at::Tensor& residual, const at::Tensor& branch,
                         const at::Tensor& norm,
                         const TransformerBlockOptions& options) {
  return residual + RmsNorm(branch, norm, options.eps, options.norm_plus_one);
}

}  // namespace

std::vector<StoredLinear> AttentionMatrices(
    const AttentionWeights& w, const TransformerBlockOptions& options,
    std::vector<LinearPart>* parts) {
  const AttentionShape& shape = options.shape;
  const auto& to = options.parameters;
  std::vector<StoredLinear> stored;
  stored.reserve(kBlockMatrices);
  parts->clear();
  parts->reserve(3);
  stored.push_back({w.q, w.q_bias, w.adapters[0], to[kQueryMatrix]});
  if (w.k.defined()) {
    stored.push_back({w.k, w.k_bias, w.adapters[1], to[kKeyMatrix]});
    stored.push_back({w.v, w.v_bias, w.adapters[2], to[kValueMatrix]});
    for (int i = 0; i < 3; ++i) parts->emplace_back(stored[i], i);
    return stored;
  }
  const int64_t q = shape.heads * shape.head_dim;
  const int64_t kv = shape.kv_heads * shape.head_dim;
  parts->emplace_back(stored[0], 0, 0, q);
  parts->emplace_back(stored[0], 0, q, kv);
  parts->emplace_back(stored[0], 0, q + kv, kv);
  return stored;
}

std::vector<StoredLinear> MlpMatrices(const GatedMlpWeights& w,
                                      const std::array<int, 7>& to,
                                      std::vector<LinearPart>* parts) {
  std::vector<StoredLinear> stored;
  stored.reserve(3);
  parts->clear();
  parts->reserve(3);
  stored.push_back({w.gate, w.gate_bias, w.adapters[0], to[kGateMatrix]});
  if (w.up.defined()) {
    stored.push_back({w.up, w.up_bias, w.adapters[1], to[kUpMatrix]});
    for (int i = 0; i < 2; ++i) parts->emplace_back(stored[i], i);
  } else {
    const int64_t inner = w.gate.rows() / 2;
    parts->emplace_back(stored[0], 0, 0, inner);
    parts->emplace_back(stored[0], 0, inner, inner);
  }
  stored.push_back({w.down, w.down_bias, w.adapters[2], to[kDownMatrix]});
  parts->emplace_back(stored.back(), static_cast<int>(stored.size()) - 1);
  return stored;
}

QueryKeyValue AttentionInput(const at::Tensor& x,
                             const AttentionWeights& weights,
                             const TransformerBlockOptions& options) {
  const bool normed = weights.q_norm.defined();
  TORCH_CHECK(normed == weights.k_norm.defined(),
              "queries and keys are both normalised, or neither is");
  ProjectionsCall call;
  call.norm = {weights.norm, options.eps, options.norm_plus_one};
  call.stored = AttentionMatrices(weights, options, &call.parts);
  call.rotated = normed ? 0 : 2;
  call.rope_table = options.rope_table;
  call.head_dim = options.shape.head_dim;
  if (OnGpuPath(x)) {
    // Norms of heads read rows that aren't apart.
    if (!normed) call.joined = JoinedLinear(call.parts);
    call.pass_x = true;
    call.sink = options.sink;
  }
  const NodeInputs inputs = InputsOf(x, &call.norm, &call.stored);
  call.inputs = static_cast<int>(inputs.tensors().size());
  const variable_list out = ProjectionsFunction::apply(inputs.tensors(), call);
  const at::Tensor& residual = call.pass_x ? out[3] : x;
  if (!normed) return {out[0], out[1], out[2], residual};
  const NormRopeCall rope = {options};
  return {NormRopeFunction::apply(out[0], weights.q_norm, rope),
          NormRopeFunction::apply(out[1], weights.k_norm, rope), out[2],
          residual};
}

at::Tensor AttentionOutput(const at::Tensor& mixed, const at::Tensor& x,
                           const TransformerBlockWeights& weights,
                           const TransformerBlockOptions& options) {
  const at::Tensor& norm = weights.attention_post_norm;
  if (!norm.defined()) return Output(mixed, x, weights, options);
  return AddNormalised(x, AttentionBranch(mixed, weights, options), norm,
                       options);
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
  call.norm = {weights.norm, options.eps, options.norm_plus_one};
  call.activation = options.activation;
  call.add = !weights.post_norm.defined();
  std::vector<LinearPart> parts;
  call.stored = MlpMatrices(weights, options.parameters, &parts);
  call.gate = parts[0];
  call.up = parts[1];
  call.down = parts[2];
  if (OnGpuPath(x)) {
    parts.pop_back();
    call.joined = JoinedLinear(parts);
    call.sink = options.sink;
  }
  NodeInputs inputs = InputsOf(x, &call.norm, &call.stored);
  call.branch = inputs.Add(branch);
  call.inputs = static_cast<int>(inputs.tensors().size());
  const at::Tensor out = GatedMlpFunction::apply(inputs.tensors(), call);
  return call.add ? out : AddNormalised(x, out, weights.post_norm, options);
}

void PlanAttentionInput(const TransformerBlockShape& s, MemoryLedger* ledger) {
  if (s.input_norms) PlanRmsNorm(s.rows, s.hidden, s.dtype, ledger);
  ledger->Take(s.q() + 2 * s.kv());
  ledger->Pass(s.Linear(kValueMatrix).forward);
  if (s.input_norms) ledger->Free(s.x());  // n
  // The results of norms, besides what they normalise.
  if (s.query_key_norm != QueryKeyNorm::kNone) {
    ledger->Take(s.q() + s.kv() + s.query_key_rstd());
  }
}

void PlanAttentionInputBackward(const TransformerBlockShape& s,
                                MemoryLedger* ledger) {
  if (s.query_key_norm != QueryKeyNorm::kNone) {
    // Gradients take the place of what attention returned.
    ledger->Pass(s.q() + s.kv());
    ledger->Free(s.q() + s.kv() + s.query_key_rstd());
  } else if (s.gpu) {
    ledger->Take(s.q() + 2 * s.kv());  // the gradients as one matrix
  }
  if (s.input_norms) ledger->Take(s.x());  // n, again
  const LinearMemory value = s.Linear(kValueMatrix);
  ledger->Take(s.x() + s.Linear(kQueryMatrix).gradients +
               s.Linear(kKeyMatrix).gradients + value.gradients);
  ledger->Pass(value.backward);
  if (s.input_norms) {
    PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, ledger);
  }
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
  if (branch) ledger->Free(s.x());
  if (s.post_norms) PlanAddNormalised(s, ledger);
}

void PlanGatedMlpBackward(const TransformerBlockShape& s,
                          MemoryLedger* ledger) {
  const LinearMemory gate = s.Linear(kGateMatrix), up = s.Linear(kUpMatrix);
  const LinearMemory down = s.Linear(kDownMatrix);
  if (s.post_norms) PlanAddNormalisedBackward(s, ledger);
  ledger->Take(3 * s.inner());  // d of the activation, gate and up
  ledger->Take(down.gradients);
  ledger->Pass(down.backward);
  ledger->Free(s.inner());
  const int64_t n = s.input_norms ? s.x() : 0;
  ledger->Take(n);  // again
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
  ledger->Free(s.x() + 2 * s.inner() + (s.input_norms ? s.rstd() : 0));
  // Gradients of parameters live until backward's next operator.
  ledger->Free(gate.gradients + up.gradients + down.gradients +
               (s.input_norms ? s.norm_gradient() : 0));
}

}  // namespace capstan::kernels
