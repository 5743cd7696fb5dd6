// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/router_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::decoder {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Shared = c10::intrusive_ptr<RouterLoss>;

Shared LossOf(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<RouterLoss>(
      ctx->saved_data["loss"].toCapsule());
}

// Passes a layer's output on, and the loss's gradient to `probability`.
class NoteFunction : public torch::autograd::Function<NoteFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& output,
                            const at::Tensor& probability, const Shared& loss) {
    ctx->saved_data["loss"] = c10::IValue::make_capsule(loss);
    return output;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {grads[0], LossOf(ctx)->Gradient(), at::Tensor()};
  }
};

// sum + added, which has no gradient of its own; its backward comes before
// those of all layers.
class AddFunction : public torch::autograd::Function<AddFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& sum,
                            const at::Tensor& added, const Shared& loss) {
    ctx->saved_data["loss"] = c10::IValue::make_capsule(loss);
    return sum + added;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    LossOf(ctx)->SetIncoming(grads[0]);
    return {grads[0], at::Tensor(), at::Tensor()};
  }
};

Shared SharedFrom(RouterLoss* loss) {
  return Shared::unsafe_reclaim_from_nonowning(loss);
}

}  // namespace

RouterLoss::RouterLoss(int layers, double coefficient, at::Tensor counted)
    : coefficient_(coefficient),
      counted_(std::move(counted)),
      probability_(layers),
      chosen_(layers) {}

at::Tensor RouterLoss::Note(int layer, const at::Tensor& output,
                            const at::Tensor& probability,
                            const at::Tensor& chosen) {
  probability_[layer] = probability.detach();
  chosen_[layer] = chosen.detach();
  if (!probability.requires_grad()) return output;
  return NoteFunction::apply(output, probability, SharedFrom(this));
}

at::Tensor RouterLoss::Gradient() const { return incoming_ * per_probability_; }

at::Tensor RouterLoss::AddTo(
    const at::Tensor& sum, const at::Tensor& targets, int64_t rows,
    const std::function<void(const at::Tensor&)>& all_sum) {
  at::Tensor probability, chosen;
  int64_t layers = 0;
  for (size_t i = 0; i < probability_.size(); ++i) {
    if (!probability_[i].defined()) continue;
    probability = layers == 0 ? probability_[i] : probability + probability_[i];
    chosen = layers == 0 ? chosen_[i] : chosen + chosen_[i];
    ++layers;
  }
  CHECK_GT(layers, 0) << "no layer has noted its experts";
  if (all_sum) {
    chosen = chosen.clone();
    all_sum(chosen);
  }
  const double of_layers = static_cast<double>(layers * rows);
  const double experts = static_cast<double>(chosen.numel());
  at::Tensor loss;
  {
    const at::AutoGradMode no_gradients(false);
    per_probability_ =
        chosen * (coefficient_ * experts / of_layers / of_layers) * targets;
    loss = (per_probability_ * probability).sum();
  }
  return sum.requires_grad() ? AddFunction::apply(sum, loss, SharedFrom(this))
                             : sum + loss;
}

}  // namespace capstan::decoder
