// SPDX-License-Identifier: Apache-2.0
//
// The node of queries, keys and values.
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/keep.h"
#include "kernels/layers/block_nodes.h"
#include "kernels/layers/block_parts.h"
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

// y = rope(RmsNorm(x)) of x [rows, width], in which each `n` columns have a
// norm of their own: a head, or the whole row.
struct NormRope {
  at::Tensor weight;  // [n]
  double eps = 0.0;
  bool plus_one = false;
  at::Tensor rope_table;  // see ApplyRope
  int64_t head_dim = 0;
  WeightPlace place;  // of the weight's gradient, on GPUs
  int input = -1;     // of the node

  bool defined() const { return weight.defined(); }
  // y: [rows, width], dense. Rows of x may be apart.
  RmsNormResult Forward(const at::Tensor& x) const;
  // The gradient to x goes to `dx` [rows, width], whose rows may be apart, or
  // is returned if that is undefined; the weight's goes to the place of the
  // node's input. dy: dense, used up.
  at::Tensor Backward(AutogradContext* ctx, at::Tensor dy, const at::Tensor& x,
                      const at::Tensor& rstd, const at::Tensor& dx,
                      variable_list* gradients) const;
};

// x [rows, width] as its norms see it: without a copy, if rows are apart.
at::Tensor ByNorm(const at::Tensor& x, int64_t n) {
  return x.is_contiguous() ? x.view({-1, n}) : x.view({x.size(0), -1, n});
}

RmsNormResult NormRope::Forward(const at::Tensor& x) const {
  RmsNormResult made =
      RmsNormForward(ByNorm(x, weight.size(0)), weight, eps, plus_one);
  made.y = made.y.view(x.sizes());
  ApplyRope(rope_table, RopeDirection::kForward, head_dim, made.y);
  return made;
}

at::Tensor NormRope::Backward(AutogradContext* ctx, at::Tensor dy,
                              const at::Tensor& x, const at::Tensor& rstd,
                              const at::Tensor& dx,
                              variable_list* gradients) const {
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

// The same memory as a tensor of its own, an output of a node.
at::Tensor Result(const at::Tensor& t) { return t.variable_data(); }

// y_i = n W_i^T with n = norm(x), of which the first `rotated` get a rope, and
// before it a norm, if they are one product.
struct ProjectionsCall {
  InputNorm norm;
  std::vector<StoredLinear> stored;
  std::array<LinearPart, 3> parts;  // queries, keys, values
  JoinedLinear joined;              // the parts, if they are one product
  JoinedAdapters adapters;          // theirs, if they are joined
  std::array<NormRope, 2> norms;    // of queries and keys, or undefined
  int rotated = 0;
  at::Tensor rope_table;
  int64_t head_dim = 0;
  bool pass_x = false;  // whether x is the last output, too
  GradientSink* sink = nullptr;
  int inputs = 0;  // of the node

  bool normed() const { return norms[0].defined(); }
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
    variable_list saved = {x, n.rstd};
    variable_list out = !call.joined.joined() ? Apart(call, n.y)
                        : call.normed()       ? Normed(call, n.y, &saved)
                                              : Joined(call, n.y);
    if (call.pass_x) out.push_back(Result(x));
    ctx->save_for_backward(std::move(saved));
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
    variable_list out(call.inputs + 1);  // and the call
    if (call.joined.joined()) {
      const at::Tensor dy = Rows(x, call.joined.width());
      if (call.normed()) {
        NormedBackward(ctx, call, saved, grads, dy, &out);
      } else {
        JoinedBackward(call, grads, dy);
      }
      call.joined.BackwardInto(dy, dn);
      call.joined.AddGradients(n, dy, &gradients);
      if (call.adapters.joined()) {
        call.adapters.Backward(n, call.joined.Parts(dy), dn, &gradients);
      }
    } else {
      ApartBackward(call, n, grads, dn, &gradients);
    }
    for (StoredGradients& of : gradients) of.MoveTo(&out);
    call.norm.Backward(ctx, dn, x, rstd,
                       call.pass_x ? grads.back() : at::Tensor(), &out);
    return out;
  }

 private:
  static variable_list Apart(const ProjectionsCall& call, const at::Tensor& n) {
    variable_list out;
    const Fp8Unchanged same(n.const_data_ptr());
    for (const LinearPart& part : call.parts) {
      out.push_back(Rows(n, part.rows()));
      ForwardInto(part, n, out.back());
    }
    call.adapters.AddTo(n, out);
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
    if (call.adapters.joined()) call.adapters.AddTo(n, joined.Parts(y));
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

  // Keeps the product and what the norms of its columns need.
  static variable_list Normed(const ProjectionsCall& call, const at::Tensor& n,
                              variable_list* saved) {
    const at::Tensor y = Rows(n, call.joined.width());
    call.joined.ForwardInto(n, y);
    if (call.adapters.joined()) call.adapters.AddTo(n, call.joined.Parts(y));
    saved->push_back(y);
    variable_list out;
    for (int i = 0; i < static_cast<int>(call.norms.size()); ++i) {
      RmsNormResult made = call.norms[i].Forward(call.joined.Part(y, i));
      out.push_back(std::move(made.y));
      saved->push_back(std::move(made.rstd));
    }
    out.push_back(Result(call.joined.Part(y, kValueMatrix)));
    return out;
  }

  static void ApartBackward(const ProjectionsCall& call, const at::Tensor& n,
                            const variable_list& grads, const at::Tensor& dn,
                            std::vector<StoredGradients>* gradients) {
    std::array<at::Tensor, 3> dy;
    const Fp8Unchanged same(n.const_data_ptr());
    for (size_t i = 0; i < call.parts.size(); ++i) {
      // Newly made by attention, and used only here.
      dy[i] = grads[i].contiguous();
      if (static_cast<int>(i) < call.rotated) {
        call.Rotate(RopeDirection::kBackward, dy[i]);
      }
      StoredGradients& of = (*gradients)[call.parts[i].of];
      const Fp8BothWays both(of.WantsMatrix());
      of.Add(call.parts[i], n, dy[i]);
      BackwardInto(call.parts[i], dy[i], dn, i == 0 ? 0.0 : 1.0);
    }
    call.adapters.Backward(n, dy, dn, gradients);
  }

  // Writes dy [rows, width()].
  static void JoinedBackward(const ProjectionsCall& call,
                             const variable_list& grads, const at::Tensor& dy) {
    for (size_t i = 0; i < call.parts.size(); ++i) {
      at::Tensor part = call.joined.Part(dy, static_cast<int>(i));
      if (static_cast<int>(i) < call.rotated) {
        ApplyRopeInto(call.rope_table, RopeDirection::kBackward, call.head_dim,
                      grads[i].contiguous(), part);
      } else {
        part.copy_(grads[i]);
      }
    }
  }

  // The same through the norms of queries and keys.
  static void NormedBackward(AutogradContext* ctx, const ProjectionsCall& call,
                             const variable_list& saved,
                             const variable_list& grads, const at::Tensor& dy,
                             variable_list* gradients) {
    const at::Tensor& y = saved[2];
    for (int i = 0; i < static_cast<int>(call.norms.size()); ++i) {
      // Newly made by attention, and used only here.
      call.norms[i].Backward(ctx, grads[i].contiguous(), call.joined.Part(y, i),
                             saved[3 + i], call.joined.Part(dy, i), gradients);
    }
    call.joined.Part(dy, kValueMatrix).copy_(grads[kValueMatrix]);
  }
};

class NormRopeFunction : public torch::autograd::Function<NormRopeFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, const NormRope& norm) {
    RmsNormResult made = norm.Forward(x);
    ctx->save_for_backward({x, made.rstd});
    Keep(ctx, norm);
    return made.y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list out(3);
    // Newly made by attention, and used only here.
    out[kX] = KeptOf<NormRope>(ctx).Backward(
        ctx, grads[0].contiguous(), saved[0], saved[1], at::Tensor(), &out);
    return out;
  }
};

}  // namespace

QueryKeyValue AttentionInput(const at::Tensor& x,
                             const AttentionWeights& weights,
                             const TransformerBlockOptions& options) {
  const bool normed = weights.q_norm.defined();
  TORCH_CHECK(normed == weights.k_norm.defined(),
              "queries and keys are both normalised, or neither is");
  const auto& to = options.norm_parameters;
  const auto norm_of = [&](const at::Tensor& weight, int parameter) {
    return NormRope{weight,
                    options.eps,
                    options.norm_plus_one,
                    options.rope_table,
                    options.shape.head_dim,
                    {options.sink, parameter},
                    /*input=*/1};
  };
  std::array<NormRope, 2> norms = {norm_of(weights.q_norm, to.query),
                                   norm_of(weights.k_norm, to.key)};
  ProjectionsCall call;
  call.norm = {weights.norm,
               options.eps,
               options.norm_plus_one,
               {options.sink, to.input}};
  BlockLinears linears;
  linears.AddAttention(weights, options);
  call.stored = std::move(linears.stored);
  for (const BlockMatrix matrix : {kQueryMatrix, kKeyMatrix, kValueMatrix}) {
    call.parts[matrix] = std::move(linears.parts[matrix]);
  }
  call.rotated = normed ? 0 : 2;
  call.rope_table = options.rope_table;
  call.head_dim = options.shape.head_dim;
  if (OnGpuPath(x)) {
    call.adapters =
        JoinedAdapters({&call.parts[0], &call.parts[1], &call.parts[2]});
    call.joined = JoinedLinear(call.parts);
    call.pass_x = true;
  }
  call.sink = SinkFor(x, options);
  NodeInputs inputs = InputsOf(x, &call.norm, &call.stored);
  const bool within = normed && call.joined.joined();
  if (within) {
    for (NormRope& norm : norms) norm.input = inputs.Add(norm.weight);
    call.norms = norms;
  }
  call.inputs = static_cast<int>(inputs.tensors().size());
  const variable_list out = ProjectionsFunction::apply(inputs.tensors(), call);
  const at::Tensor& residual = call.pass_x ? out[3] : x;
  if (!normed || within) return {out[0], out[1], out[2], residual};
  return {NormRopeFunction::apply(out[0], weights.q_norm, norms[0]),
          NormRopeFunction::apply(out[1], weights.k_norm, norms[1]), out[2],
          residual};
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
  if (s.gpu) {
    ledger->Take(s.q() + 2 * s.kv());  // the gradients as one matrix
  } else if (s.query_key_norm != QueryKeyNorm::kNone) {
    // Gradients take the place of what attention returned.
    ledger->Pass(s.q() + s.kv());
    ledger->Free(s.q() + s.kv() + s.query_key_rstd());
  }
  if (s.input_norms) ledger->Take(s.x());  // n, again
  int64_t gradients = 0, most = 0;
  for (const BlockMatrix matrix : {kQueryMatrix, kKeyMatrix, kValueMatrix}) {
    const LinearMemory linear = s.Linear(matrix);
    gradients += linear.gradients;
    most = std::max(most, linear.backward);
  }
  ledger->Take(s.x() + gradients);
  // In 8 bits n^T is kept for the next of them.
  ledger->Pass(most + (s.gpu && s.fp8 ? s.rows * s.hidden : 0));
  if (s.input_norms) {
    PlanRmsNormBackward(s.rows, s.hidden, s.dtype, s.trained, ledger);
  }
}

}  // namespace capstan::kernels
