// SPDX-License-Identifier: Apache-2.0
#include "trainer/train/strategy_runner.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace capstan {

at::Tensor StrategyRunner::Run(int unit, const at::Tensor& input,
                               const Body& body) {
  if (!strategy_->wants_unit_callbacks()) return body(input);
  strategy_->PreForward(unit);
  at::Tensor output = body(input);
  strategy_->PostForward(unit);
  if (output.requires_grad()) {
    // The first thing of the unit that backward reaches.
    output.register_hook([strategy = strategy_, unit](const at::Tensor&) {
      strategy->PreBackward(unit);
    });
  }
  return output;
}

}  // namespace capstan
