// SPDX-License-Identifier: Apache-2.0
#include "kernels/loss/row_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <tuple>
#include <vector>

#include "kernels/keep.h"
#include "kernels/to_device.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LossesCall {
  at::Tensor weight;  // no input of the node: its gradient comes from within
  TiedGradient tied;
  int64_t logits_bytes;
  WeightPlace place;
  double softcap;
  double temperature = 1.0;
};

// The gradient to `hidden`, if it is wanted, of the sum of weights *
// -log softmax(..)[target], which counts as it is; that of the head's weight
// goes where the call says.
at::Tensor LossesBackward(const at::Tensor& hidden, bool wanted,
                          const at::Tensor& targets, const at::Tensor& weights,
                          const LossesCall& call) {
  // A tied weight's gradient comes with the embedding's: until then the
  // weight itself must not learn of any.
  const at::Tensor weight =
      call.tied ? call.weight.detach().set_requires_grad(true) : call.weight;
  const at::Tensor x = hidden.detach().set_requires_grad(wanted);
  at::Tensor sum;
  {
    const at::AutoGradMode with_gradients(true);
    sum = HeadCrossEntropySum(x, weight, targets, call.tied, call.logits_bytes,
                              call.place, weights, call.softcap,
                              /*smoothing=*/0.0, call.temperature);
  }
  if (sum.requires_grad()) {
    torch::autograd::backward({sum}, {at::ones_like(sum)});
  }
  return wanted ? x.grad() : at::Tensor();
}

// Without gradients.
at::Tensor Sums(const at::Tensor& hidden, const at::Tensor& weight,
                const at::Tensor& targets, int64_t logits_bytes,
                double softcap) {
  const int64_t sets = targets.size(0), batch = targets.size(1),
                length = targets.size(2);
  const at::Tensor rows = hidden.view({batch, length, hidden.size(1)});
  std::vector<at::Tensor> sums;
  sums.reserve(sets * batch);
  for (int64_t s = 0; s < sets; ++s) {
    for (int64_t b = 0; b < batch; ++b) {
      sums.push_back(HeadCrossEntropySum(
          rows[b], weight, targets[s][b], TiedGradient(), logits_bytes,
          /*place=*/{}, /*row_weights=*/{}, softcap));
    }
  }
  return at::stack(sums).view({sets, batch});
}

class RowsFunction : public torch::autograd::Function<RowsFunction> {
 public:
  // `marker` requires a gradient, so that backward gets here even if only the
  // weight needs one.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden,
                            const at::Tensor& marker, const at::Tensor& targets,
                            const LossesCall& call) {
    ctx->save_for_backward({hidden, targets});
    Keep(ctx, call);
    return Sums(hidden, call.weight, targets, call.logits_bytes, call.softcap);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& targets = saved[1];
    const LossesCall& call = KeptOf<LossesCall>(ctx);
    // Each position's worth: of all sets that have a target there.
    const at::Tensor worth = grads[0].to(at::kFloat).unsqueeze(2);
    const at::Tensor has = ToDevice(targets.ge(0), worth.device());
    const at::Tensor weights = (has * worth).sum(0).reshape({-1});
    const at::Tensor flat = std::get<0>(targets.max(0)).reshape({-1});
    variable_list out(4);
    out[0] =
        LossesBackward(saved[0], ctx->needs_input_grad(0), flat, weights, call);
    return out;
  }
};

class TokensFunction : public torch::autograd::Function<TokensFunction> {
 public:
  // `marker` as RowsFunction's.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden,
                            const at::Tensor& marker, const at::Tensor& targets,
                            const LossesCall& call, at::Tensor* entropy) {
    ctx->save_for_backward({hidden, targets});
    Keep(ctx, call);
    return HeadLogProbs(hidden, call.weight, targets, call.logits_bytes,
                        call.softcap, call.temperature, entropy);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    variable_list out(5);
    out[0] =
        LossesBackward(saved[0], ctx->needs_input_grad(0), saved[1],
                       grads[0].to(at::kFloat).neg(), KeptOf<LossesCall>(ctx));
    return out;
  }
};

// Whether a gradient is asked for. Its node gets there by the marker.
bool NeedsGradient(const at::Tensor& hidden, const at::Tensor& weight) {
  return at::GradMode::is_enabled() &&
         (hidden.requires_grad() || weight.requires_grad());
}

at::Tensor MarkerFor(const at::Tensor& hidden) {
  return at::empty({0}, hidden.options()).set_requires_grad(true);
}

}  // namespace

at::Tensor HeadTokenLogProbs(const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& targets, double temperature,
                             at::Tensor* entropy, const TiedGradient& tied,
                             const WeightPlace& place, double softcap,
                             int64_t logits_bytes) {
  TORCH_CHECK(targets.dim() == 1 && targets.size(0) == hidden.size(0),
              "each row must have one target");
  if (!NeedsGradient(hidden, weight)) {
    return HeadLogProbs(hidden, weight, targets, logits_bytes, softcap,
                        temperature, entropy);
  }
  return TokensFunction::apply(
      hidden, MarkerFor(hidden), targets,
      LossesCall{weight, tied, logits_bytes, place, softcap, temperature},
      entropy);
}

at::Tensor HeadCrossEntropyRows(const at::Tensor& hidden,
                                const at::Tensor& weight,
                                const at::Tensor& targets,
                                const TiedGradient& tied, int64_t logits_bytes,
                                const WeightPlace& place, double softcap) {
  TORCH_CHECK(
      targets.dim() == 3 && targets.size(1) * targets.size(2) == hidden.size(0),
      "targets must be [sets, texts, positions], as many positions as "
      "hidden has rows");
  if (!NeedsGradient(hidden, weight)) {
    return Sums(hidden, weight, targets, logits_bytes, softcap);
  }
  return RowsFunction::apply(
      hidden, MarkerFor(hidden), targets,
      LossesCall{weight, tied, logits_bytes, place, softcap});
}

}  // namespace capstan::kernels
