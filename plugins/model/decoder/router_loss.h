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

#include <vector>

namespace capstan::decoder {

// Of one forward. One thread.
class RouterLoss : public torch::CustomClassHolder {
 public:
  // A loss of `coefficient` times the above.
  RouterLoss(int layers, double coefficient);

  // Notes a layer's sums over its `rows` rows, [experts] float32 each. Returns
  // `output` with a gradient to `probability`, once AddTo's backward has run.
  at::Tensor Note(int layer, const at::Tensor& output,
                  const at::Tensor& probability, const at::Tensor& chosen,
                  int64_t rows);

  // sum + targets * the loss, for a sum over `targets` (a scalar) tokens; after
  // the last layer.
  at::Tensor AddTo(const at::Tensor& sum, const at::Tensor& targets);

  // Used by the nodes. d(what AddTo returned) / d(any layer's probability),
  // [experts].
  at::Tensor Gradient() const;
  void SetIncoming(const at::Tensor& gradient) { incoming_ = gradient; }

 private:
  const double coefficient_;
  std::vector<at::Tensor> probability_, chosen_;  // by layer; no graph
  int64_t rows_ = 0;                              // of a layer
  at::Tensor per_probability_;
  at::Tensor incoming_;
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_ROUTER_LOSS_H_
