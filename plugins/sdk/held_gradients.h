// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_HELD_GRADIENTS_H_
#define CAPSTAN_PLUGINS_SDK_HELD_GRADIENTS_H_

#include <ATen/core/Tensor.h>

#include <string>

namespace capstan {

// Implemented by a Strategy whose backward can be replayed on the device
// (train.cuda_graphs). Called on the strategy's thread, not within backward.
class HeldGradients {
 public:
  virtual ~HeldGradients();

  // Makes backward write gradients to memory that never moves from now on.
  // Called once, before all else but Strategy::Setup. May allocate.
  virtual void FixGradients() = 0;

  // Makes this micro-step's backward only compute gradients: all but work of
  // the current stream, such as collectives, waits for the next BeginMicroStep
  // or FinishBackward. Called after Strategy::BeginMicroStep.
  virtual void HoldReductions() = 0;

  virtual at::Tensor held() = 0;  // contiguous; where backward writes or adds

  // Returns which gradients exist, so that backward adds to them. Called
  // between HoldReductions and the next BeginMicroStep.
  virtual std::string GradientState() const = 0;
  // Restores a state: after a replayed backward, that after the recorded one.
  virtual void SetGradientState(const std::string& state) = 0;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_HELD_GRADIENTS_H_
