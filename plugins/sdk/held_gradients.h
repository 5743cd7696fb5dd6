// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_HELD_GRADIENTS_H_
#define CAPSTAN_PLUGINS_SDK_HELD_GRADIENTS_H_

#include <ATen/core/Tensor.h>

#include <string>

namespace capstan {

// A Strategy also derives from this if a micro-step's backward can be repeated
// as recorded work of the device, without its code (train.cuda_graphs); found
// by dynamic_cast. The core calls it on the thread of the strategy's other
// calls, and never within a backward.
class HeldGradients {
 public:
  virtual ~HeldGradients();

  // Makes backward write gradients to memory that never moves from now on.
  // Called once, after Strategy::Setup and before all other calls. May
  // allocate.
  virtual void FixGradients() = 0;

  // Makes this micro-step's backward only compute gradients: collectives that
  // it would start, and everything else that isn't work of the current stream,
  // wait for the next BeginMicroStep or FinishBackward. Called after
  // Strategy::BeginMicroStep.
  virtual void HoldReductions() = 0;

  // The contiguous tensor that backward writes gradients to or adds them to.
  virtual at::Tensor held() = 0;

  // A description of which gradients exist already, which decides whether a
  // backward writes or adds them. Called between HoldReductions and the next
  // BeginMicroStep.
  virtual std::string GradientState() const = 0;
  // Restores a `state` from GradientState. After a backward is replayed, this
  // is the state after the recorded one.
  virtual void SetGradientState(const std::string& state) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_HELD_GRADIENTS_H_
