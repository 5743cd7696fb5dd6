// SPDX-License-Identifier: Apache-2.0
//
// Rows are copied together by expert, so that an expert is one MLP on its rows.
// Backward recomputes what is cheap: n, and the experts' activations.
//
// On a GPU that has them the experts' products are grouped (grouped_experts.h).
// Others are issued by the host one by one, which must know how many rows each
// has: in a forward pass on a GPU it waits once for these numbers, and lets the
// device sort and copy the rows meanwhile.
#include "kernels/layers/moe.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/profile.h"
#include "kernels/context/on_paper.h"
#include "kernels/context/recompute.h"
#include "kernels/fast_path.h"
#include "kernels/keep.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/gpu_path.h"
#include "kernels/layers/grouped_experts.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/stored_linear.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kX = 0, kNorm = 1, kRouter = 2;  // the node's first inputs
enum ExpertMatrix { kGate, kUp, kDown, kExpertMatrices };

// What the router decides.
struct Routing {
  at::Tensor probability;  // [rows, experts] float32
  at::Tensor share;        // [rows, top_k] float32: of the chosen experts
  at::Tensor sum;          // [rows, 1] that was divided by; undefined: none
  at::Tensor expert;       // [rows, top_k] int64
  // Unless products are grouped: choices sorted by expert, and by row within
  // one: the place r * top_k + i of each in `share`, its row r, and how many
  // each expert has. order: where each place's choice is among them.
  at::Tensor place, row, order;
  at::Tensor chosen;            // [experts] float32: how many each has
  std::vector<int64_t> counts;  // the same

  // [rows * top_k, 1] of `type`: the shares, sorted.
  at::Tensor SortedShares(at::ScalarType type) const {
    return share.reshape({-1, 1}).index_select(0, place).to(type);
  }
  // [rows, width]: the sum over each row's choices of sorted [rows * top_k,
  // width]; the same on each device at each run.
  at::Tensor SumByRow(const at::Tensor& sorted) const {
    return sorted.index_select(0, order)
        .view({expert.size(0), expert.size(1), sorted.size(1)})
        .sum({1});
  }
};

// Forward's results that backward reads.
struct Call {
  MoeOptions options;
  std::vector<StoredLinear> stored;  // kExpertMatrices an expert
  int inputs = 0;
  at::Tensor x, norm, router;
  at::Tensor rstd;
  Routing routing;
  // [rows * top_k, intermediate], sorted by expert; unless `recompute`.
  at::Tensor gate, up;
  bool recompute = RecomputesMlp();
  // In place of gate and up; null: products aren't grouped.
  std::unique_ptr<GroupedExperts> grouped;
  bool trained = false;  // whether backward needs the matrices' gradients
};

at::Tensor New(int64_t rows, int64_t width, const at::Tensor& like) {
  return at::empty({rows, width}, like.options().requires_grad(false));
}

// How many of the choices [rows, top_k] each expert has.
class ExpertCounts {
 public:
  ExpertCounts(const at::Tensor& expert, int64_t experts)
      : choices_(expert.numel()) {
    const at::Device device = expert.device();
    if (device.is_cpu()) {
      counts_.assign(experts, 0);
      const at::Tensor all = expert.contiguous();
      const int64_t* const first = all.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < all.numel(); ++i) ++counts_[first[i]];
      const std::vector<float> counts(counts_.begin(), counts_.end());
      chosen_ = at::tensor(counts);
      return;
    }
    const at::Tensor counts = expert.reshape({-1, 1})
                                  .eq(at::arange(experts, expert.options()))
                                  .sum({0}, /*keepdim=*/false, at::kLong);
    chosen_ = counts.to(at::kFloat);
    host_ = at::empty(
        {experts},
        at::TensorOptions().dtype(at::kLong).pinned_memory(device.is_cuda()));
    host_.copy_(counts, /*non_blocking=*/true);
    there_.emplace(device.type());
    const c10::impl::VirtualGuardImpl guard(device.type());
    there_->record(guard.getStream(device));
  }

  const at::Tensor& chosen() const { return chosen_; }
  // Once; on a GPU blocks until they are there.
  std::vector<int64_t> Take() {
    if (!there_.has_value()) return std::move(counts_);
    there_->synchronize();
    const int64_t experts = host_.numel();
    const int64_t* const first = host_.const_data_ptr<int64_t>();
    std::vector<int64_t> counts(first, first + experts);
    if (OnPaper()) {  // as if all were chosen equally often
      for (int64_t e = 0; e < experts; ++e) {
        counts[e] = choices_ / experts + (e < choices_ % experts ? 1 : 0);
      }
    }
    return counts;
  }

 private:
  const int64_t choices_;
  at::Tensor chosen_;
  std::vector<int64_t> counts_;
  at::Tensor host_;
  std::optional<c10::Event> there_;  // unset on the CPU
};

// Sorts the choices by expert.
void Group(Routing* r) {
  const int64_t top_k = r->expert.size(1);
  r->place = r->expert.reshape({-1}).argsort(/*stable=*/true, /*dim=*/0,
                                             /*descending=*/false);
  r->row = r->place.div(top_k, "floor");
  r->order = at::empty_like(r->place);
  r->order.index_copy_(0, r->place,
                       at::arange(r->place.numel(), r->place.options()));
}

// The choices of [rows, hidden] n's rows; unless `sorted` is null, they are
// sorted by expert, and it becomes n's rows, one for each choice, [rows *
// top_k, hidden].
Routing Route(const at::Tensor& n, const at::Tensor& router,
              const MoeOptions& options, at::Tensor* sorted) {
  const ProfileScope profile("router");
  Routing r;
  // As in transformers, logits are of n's dtype, and the rest is float32.
  const at::Tensor logits = MatMul(n, router.t());
  r.probability = at::softmax(logits, -1, at::kFloat);
  auto [value, index] = at::topk(r.probability, options.top_k, -1);
  r.expert = std::move(index);
  r.share = std::move(value);
  std::optional<ExpertCounts> counts;
  if (sorted != nullptr) {
    counts.emplace(r.expert, router.size(0));
    r.chosen = counts->chosen();
  }
  if (options.normalise) {
    r.sum = r.share.sum({-1}, /*keepdim=*/true);
    r.share = r.share / r.sum;
  }
  if (sorted == nullptr) return r;
  Group(&r);
  *sorted = n.index_select(0, r.row);
  r.counts = counts->Take();
  return r;
}

// Calls body(expert, first, count) for each that has rows.
template <typename Body>
void ForExperts(const std::vector<int64_t>& counts, const Body& body) {
  int64_t first = 0;
  for (size_t e = 0; e < counts.size(); ++e) {
    if (counts[e] > 0) body(static_cast<int>(e), first, counts[e]);
    first += counts[e];
  }
}

LinearPart Part(const Call& call, int expert, ExpertMatrix matrix) {
  const int of = expert * kExpertMatrices + matrix;
  return {call.stored[of], of};
}

// gate and up of an expert's rows, which begin at the first-th choice: where
// the call keeps them, or new.
std::pair<at::Tensor, at::Tensor> GateAndUp(const Call& call, int e,
                                            const at::Tensor& rows,
                                            int64_t first) {
  const LinearPart gate = Part(call, e, kGate), up = Part(call, e, kUp);
  const auto place = [&](const at::Tensor& kept) {
    return kept.defined() ? kept.narrow(0, first, rows.size(0))
                          : New(rows.size(0), gate.rows(), rows);
  };
  std::pair<at::Tensor, at::Tensor> made(place(call.gate), place(call.up));
  const Fp8Unchanged same(rows.const_data_ptr());
  ForwardInto(gate, rows, made.first);
  ForwardInto(up, rows, made.second);
  return made;
}

using SharedCall = std::shared_ptr<Call>;

at::Tensor Forward(Call* call) {
  const RmsNormResult n =
      RmsNormForward(call->x, call->norm, call->options.eps);
  call->rstd = n.rstd;
  if (call->grouped != nullptr) {
    Routing& r = call->routing;
    r = Route(n.y, call->router, call->options, /*sorted=*/nullptr);
    const ProfileScope profile("experts");
    const at::Tensor y = call->grouped->Forward(call->x, n.y, r.expert, r.share,
                                                call->stored, call->trained);
    r.chosen = call->grouped->chosen();
    return y;
  }
  at::Tensor sorted;
  call->routing = Route(n.y, call->router, call->options, &sorted);
  const Routing& r = call->routing;
  const int64_t choices = sorted.size(0);
  const int64_t inner = call->stored[kGate].weight.rows();
  if (!call->recompute) {
    call->gate = New(choices, inner, sorted);
    call->up = New(choices, inner, sorted);
  }
  const at::Tensor out = New(choices, sorted.size(1), sorted);
  ForExperts(r.counts, [&](int e, int64_t first, int64_t count) {
    const at::Tensor rows = sorted.narrow(0, first, count);
    const auto [gate, up] = GateAndUp(*call, e, rows, first);
    ForwardInto(Part(*call, e, kDown), Gated(Activation::kSilu, gate, up),
                out.narrow(0, first, count));
  });
  at::Tensor(out).mul_(r.SortedShares(out.scalar_type()));
  return r.SumByRow(out).add_(call->x);
}

class Backward {
 public:
  Backward(Call* call, AutogradContext* ctx)
      : call_(*call), ctx_(ctx), gradients_(call->inputs + 1) {
    of_stored_.reserve(call->stored.size());
    for (const StoredLinear& stored : call->stored) {
      of_stored_.emplace_back(stored, ctx, call->options.sink);
    }
  }

  // dy [rows, hidden]; d_probability [experts] float32.
  variable_list Run(const at::Tensor& dy, const at::Tensor& d_probability) {
    n_ = RmsNormAgain(call_.x, call_.norm, call_.rstd);
    const at::Tensor d_share =
        call_.grouped == nullptr
            ? Experts(dy)
            : call_.grouped->Backward(n_, dy, call_.stored, &of_stored_, &dn_);
    Router(d_share, d_probability);
    for (StoredGradients& of : of_stored_) of.MoveTo(&gradients_);
    RmsNormGradients made =
        RmsNormBackward(dn_, call_.x, call_.norm, call_.rstd, dy,
                        ctx_->needs_input_grad(kNorm));
    gradients_[kX] = std::move(made.x);
    gradients_[kNorm] = std::move(made.weight);
    return std::move(gradients_);
  }

 private:
  // Returns the gradient of the shares, [rows, top_k] float32.
  at::Tensor Experts(const at::Tensor& dy) {
    const Routing& r = call_.routing;
    const at::Tensor x = n_.index_select(0, r.row);
    const at::Tensor d_out = dy.index_select(0, r.row);
    const at::Tensor share = r.SortedShares(dy.scalar_type());
    const at::Tensor dx = New(x.size(0), x.size(1), x);
    const at::Tensor d_share = at::empty({x.size(0)}, r.share.options());
    ForExperts(r.counts, [&](int e, int64_t first, int64_t count) {
      const auto rows = [&](const at::Tensor& t) {
        return t.narrow(0, first, count);
      };
      const auto [gate, up] = call_.recompute
                                  ? GateAndUp(call_, e, rows(x), first)
                                  : std::pair(rows(call_.gate), rows(call_.up));
      Expert(e, {rows(x), rows(d_out), rows(share), gate, up, rows(dx),
                 rows(d_share)});
    });
    NothingForTheOthers();
    dn_ = r.SumByRow(dx);
    return d_share.index_select(0, r.order).view(r.share.sizes());
  }

  struct ExpertRows {
    at::Tensor x, d_out, share, gate, up;
    at::Tensor dx, d_share;  // written
  };
  void Expert(int e, ExpertRows rows) {
    const LinearPart gate = Part(call_, e, kGate), up = Part(call_, e, kUp);
    const LinearPart down = Part(call_, e, kDown);
    // As if the share was 1: its own gradient, d_out . (activation Wdown^T), is
    // (d_out Wdown) . activation.
    at::Tensor d_activation = New(rows.x.size(0), down.columns(), rows.x);
    BackwardInto(down, rows.d_out, d_activation);
    rows.d_share.copy_(
        (d_activation * Gated(Activation::kSilu, rows.gate, rows.up))
            .sum({-1}, /*keepdim=*/false, at::kFloat));
    d_activation.mul_(rows.share);
    rows.d_out.mul_(rows.share);
    const GatedGradients d = GatedBackward(Activation::kSilu, rows.gate,
                                           rows.up, std::move(d_activation));
    of_stored_[down.of].Add(down, d.activation, rows.d_out);
    {
      const Fp8Unchanged same(rows.x.const_data_ptr());
      of_stored_[gate.of].Add(gate, rows.x, d.gate);
      of_stored_[up.of].Add(up, rows.x, d.up);
    }
    BackwardInto(gate, d.gate, rows.dx);
    BackwardInto(up, d.up, rows.dx, /*beta=*/1.0);
  }

  // Matrices of experts without rows have gradients of 0.
  void NothingForTheOthers() {
    const auto& counts = call_.routing.counts;
    for (size_t e = 0; e < counts.size(); ++e) {
      if (counts[e] > 0) continue;
      for (const ExpertMatrix matrix : {kGate, kUp, kDown}) {
        const LinearPart part = Part(call_, static_cast<int>(e), matrix);
        const at::Tensor none = New(0, part.columns(), n_);
        of_stored_[part.of].Add(part, none, New(0, part.rows(), n_));
      }
    }
  }

  // From the gradient of the shares to that of the router and n.
  void Router(const at::Tensor& d_share, const at::Tensor& d_probability) {
    const ProfileScope profile("router");
    const Routing& r = call_.routing;
    // share = p / sum: d p = (d share - sum of d share * share) / sum.
    at::Tensor d_chosen = d_share;
    if (r.sum.defined()) {
      d_chosen =
          (d_share - (d_share * r.share).sum({-1}, /*keepdim=*/true)) / r.sum;
    }
    at::Tensor d = at::zeros_like(r.probability);
    d.scatter_(1, r.expert, d_chosen);
    const at::Tensor& counted = call_.options.counted;
    if (d_probability.defined()) {
      d.add_(counted.defined() ? counted.unsqueeze(1) * d_probability
                               : d_probability);
    }
    const at::Tensor d_logits =
        at::_softmax_backward_data(d, r.probability, -1, at::kFloat)
            .to(n_.scalar_type());
    MatMulInto(dn_, d_logits, call_.router, /*beta=*/1.0);
    if (ctx_->needs_input_grad(kRouter)) {
      gradients_[kRouter] = MatMul(d_logits.t(), n_);
    }
  }

  Call& call_;
  AutogradContext* const ctx_;
  at::Tensor n_, dn_;
  std::vector<StoredGradients> of_stored_;
  variable_list gradients_;
};

class MoeFunction : public torch::autograd::Function<MoeFunction> {
 public:
  // The output and MoeResult's sums.
  static variable_list forward(AutogradContext* ctx, at::TensorList /*inputs*/,
                               const SharedCall& call) {
    Keep(ctx, call);
    at::Tensor out = Forward(call.get());
    const Routing& r = call->routing;
    const at::Tensor& counted = call->options.counted;
    at::Tensor chosen = r.chosen;
    if (counted.defined()) {
      chosen = at::zeros_like(r.chosen).index_add_(
          0, r.expert.reshape({-1}),
          counted.repeat_interleave(call->options.top_k));
    }
    ctx->mark_non_differentiable({chosen});
    at::Tensor sum;
    if (!call->options.sums_probability) {
      sum = at::empty({0}, r.probability.options());
    } else if (counted.defined()) {
      sum = (r.probability * counted.unsqueeze(1)).sum({0});
    } else {
      sum = r.probability.sum({0});
    }
    return {std::move(out), std::move(sum), std::move(chosen)};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Call& call = *KeptOf<SharedCall>(ctx);
    TORCH_CHECK(call.x.defined(), "the experts' backward can run only once");
    variable_list gradients =
        Backward(&call, ctx)
            .Run(grads[0].contiguous(),
                 call.options.sums_probability ? grads[1] : at::Tensor());
    call = Call();
    return gradients;
  }
};

// GroupedExperts', besides what is kept: where gate and up come to the same
// place, and routing has a few numbers less.
void PlanGrouped(const MoeShape& s, OperatorMemory* memory) {
  const int64_t element = ElementBytes(s.dtype);
  const int64_t places = s.rows * s.top_k + (s.trained ? s.experts : 0);
  const int64_t x = s.rows * s.hidden * element;
  const int64_t sorted = places * s.hidden * element;
  const int64_t inner = places * s.intermediate * element;
  // A matrix of each expert, whose gradients are made together.
  const int64_t matrix =
      s.trained ? s.experts * s.intermediate * s.hidden * element : 0;
  const int64_t again = RecomputesMlp() ? 2 * inner : 0;  // gate and up
  memory->forward = std::max(memory->forward, x + sorted + inner + again);
  // Of down, with n's rows to come; of gate and up.
  memory->backward =
      std::max(memory->backward, 2 * x + sorted + 2 * inner + matrix +
                                     std::max(inner, matrix) + again);
}

}  // namespace

OperatorMemory PlanMoeMlp(const MoeShape& s) {
  const int64_t element = ElementBytes(s.dtype), choices = s.rows * s.top_k;
  const int64_t x = s.rows * s.hidden * element, sorted = s.top_k * x;
  const int64_t inner = choices * s.intermediate * element;
  const int64_t routing = s.rows * (s.experts + 2 * s.top_k + 2) * kFloatBytes +
                          4 * choices * static_cast<int64_t>(sizeof(int64_t));
  // Of an expert, if all have equally many rows.
  const int64_t expert = inner / std::max<int64_t>(1, s.experts);
  OperatorMemory memory;
  const bool again = RecomputesMlp();
  memory.kept = x + routing + (again ? 0 : 2 * inner);
  // n, its rows sorted, and the experts' outputs; at the end these twice, and
  // their sums.
  memory.forward =
      std::max(2 * sorted + (again ? 3 : 1) * expert, 3 * sorted - x) + x;
  int64_t gradients = 0;
  const std::pair<int64_t, int64_t> out_in[] = {{s.intermediate, s.hidden},
                                                {s.intermediate, s.hidden},
                                                {s.hidden, s.intermediate}};
  for (int m = 0; m < 3; ++m) {
    gradients += s.experts * PlanLinear(0, out_in[m].second, out_in[m].first,
                                        s.dtype, s.trained, s.adapters[m])
                                 .gradients;
  }
  // Those of matrices are in the sink's places.
  if (s.trained) gradients = 0;
  memory.backward = x + 3 * sorted +
                    std::max(sorted + x, (again ? 6 : 4) * expert) + gradients;
  if (s.grouped) PlanGrouped(s, &memory);
  return memory;
}

MoeResult MoeMlp(const at::Tensor& x, const MoeWeights& weights,
                 const MoeOptions& options) {
  auto call = std::make_shared<Call>();
  call->options = options;
  call->x = x.contiguous();
  call->norm = weights.norm;
  call->router = weights.router;
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    const ExpertWeights& expert = weights.experts[e];
    const std::array<int, 3> to = e < options.parameters.size()
                                      ? options.parameters[e]
                                      : std::array<int, 3>{-1, -1, -1};
    const Weight* const matrices[] = {&expert.gate, &expert.up, &expert.down};
    for (int m = 0; m < kExpertMatrices; ++m) {
      // It depends on a row's place in the batch.
      TORCH_CHECK(!expert.adapters[m].dropout.active(),
                  "adapters of experts have no dropout");
      call->stored.push_back({*matrices[m], {}, expert.adapters[m], to[m]});
    }
  }
  if (GroupedExperts::Take(call->x, call->stored)) {
    call->grouped = std::make_unique<GroupedExperts>();
    call->trained = at::GradMode::is_enabled() &&
                    std::any_of(call->stored.begin(), call->stored.end(),
                                [](const StoredLinear& s) {
                                  return s.weight.tensor.requires_grad();
                                });
  }
  NodeInputs inputs;
  inputs.Add(call->x);
  inputs.Add(call->norm);
  inputs.Add(call->router);
  for (StoredLinear& stored : call->stored) stored.AddTo(&inputs);
  call->inputs = static_cast<int>(inputs.tensors().size());
  const variable_list out = MoeFunction::apply(inputs.tensors(), call);
  return {out[0], options.sums_probability ? out[1] : at::Tensor(), out[2]};
}

}  // namespace capstan::kernels
