// SPDX-License-Identifier: Apache-2.0
//
// The auxiliary loss that keeps a mixture's experts equally busy ("Switch
// Transformers", Fedus et al., 2021, section 2.2), over the rows of all layers
// as transformers' load_balancing_loss_func computes it:
//   experts * sum over e of chosen[e] / rows * probability[e] / rows
// It is known only after the last layer, while each layer is a unit whose graph
// may be built anew in backward; so layers leave their sums here, and the
// gradient comes back from here.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_ROUTER_LOSS_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_ROUTER_LOSS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <vector>

namespace capstan::decoder {

// Of one forward. One thread.
class RouterLoss : public torch::CustomClassHolder {
 public:
  // A loss of `coefficient` times the above, of the rows that `counted` says,
  // as MoeOptions::counted.
  RouterLoss(int layers, double coefficient, at::Tensor counted = {});

  const at::Tensor& counted() const { return counted_; }

  // Notes a layer's sums over its counted rows, [experts] float32 each. Returns
  // `output` with a gradient to `probability`, once AddTo's backward has run.
  at::Tensor Note(int layer, const at::Tensor& output,
                  const at::Tensor& probability, const at::Tensor& chosen);

  // sum + targets * the loss, for a sum over `targets` (a scalar) tokens of
  // `rows` rows a layer; after the last layer. If ranks divide the rows,
  // `all_sum` adds up a tensor over them, in place: `targets` and `rows` are
  // those of all ranks, and `sum` and what is added are this rank's parts.
  at::Tensor AddTo(const at::Tensor& sum, const at::Tensor& targets,
                   int64_t rows,
                   const std::function<void(const at::Tensor&)>& all_sum = {});

  // Used by the nodes. d(what AddTo returned) / d(any layer's probability),
  // [experts].
  at::Tensor Gradient() const;
  void SetIncoming(const at::Tensor& gradient) { incoming_ = gradient; }

 private:
  const double coefficient_;
  const at::Tensor counted_;
  std::vector<at::Tensor> probability_, chosen_;  // by layer; no graph
  at::Tensor per_probability_;
  at::Tensor incoming_;
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_ROUTER_LOSS_H_
