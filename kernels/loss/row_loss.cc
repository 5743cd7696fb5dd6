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

struct RowsCall {
  at::Tensor weight;  // no input of the node: its gradient comes from within
  TiedGradient tied;
  int64_t logits_bytes;
  WeightPlace place;
  double softcap;
};

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
                            const RowsCall& call) {
    ctx->save_for_backward({hidden, targets});
    Keep(ctx, call);
    return Sums(hidden, call.weight, targets, call.logits_bytes, call.softcap);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& targets = saved[1];
    const RowsCall& call = KeptOf<RowsCall>(ctx);
    // A tied weight's gradient comes with the embedding's: until then the
    // weight itself must not learn of any.
    const at::Tensor weight =
        call.tied ? call.weight.detach().set_requires_grad(true) : call.weight;
    const bool wanted = ctx->needs_input_grad(0);
    const at::Tensor hidden = saved[0].detach().set_requires_grad(wanted);
    // Each position's worth: of all sets that have a target there.
    const at::Tensor worth = grads[0].to(at::kFloat).unsqueeze(2);
    const at::Tensor has = ToDevice(targets.ge(0), worth.device());
    const at::Tensor weights = (has * worth).sum(0).reshape({-1});
    const at::Tensor flat = std::get<0>(targets.max(0)).reshape({-1});
    at::Tensor sum;
    {
      const at::AutoGradMode with_gradients(true);
      sum = HeadCrossEntropySum(hidden, weight, flat, call.tied,
                                call.logits_bytes, call.place, weights,
                                call.softcap);
    }
    if (sum.requires_grad()) {
      torch::autograd::backward({sum}, {at::ones_like(sum)});
    }
    variable_list out(4);
    if (wanted) out[0] = hidden.grad();
    return out;
  }
};

}  // namespace

at::Tensor HeadCrossEntropyRows(const at::Tensor& hidden,
                                const at::Tensor& weight,
                                const at::Tensor& targets,
                                const TiedGradient& tied, int64_t logits_bytes,
                                const WeightPlace& place, double softcap) {
  TORCH_CHECK(
      targets.dim() == 3 && targets.size(1) * targets.size(2) == hidden.size(0),
      "targets must be [sets, texts, positions], as many positions as "
      "hidden has rows");
  if (!at::GradMode::is_enabled() ||
      !(hidden.requires_grad() || weight.requires_grad())) {
    return Sums(hidden, weight, targets, logits_bytes, softcap);
  }
  const at::Tensor marker =
      at::empty({0}, hidden.options()).set_requires_grad(true);
  return RowsFunction::apply(
      hidden, marker, targets,
      RowsCall{weight, tied, logits_bytes, place, softcap});
}

}  // namespace capstan::kernels
