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

  // Once, after Strategy::Setup, and before all other calls: from now on
  // backward writes gradients to memory that stays where it is. May allocate.
  virtual void FixGradients() = 0;

  // After Strategy::BeginMicroStep: this micro-step's backward only computes
  // gradients. Collectives that it would start, and all else that isn't work of
  // the current stream, are left to the next BeginMicroStep or FinishBackward.
  virtual void HoldReductions() = 0;

  // What backward writes gradients to and adds them to, one contiguous tensor.
  virtual at::Tensor held() = 0;

  // What this rank knows of the gradients that are there already, on which a
  // backward's work depends (whether to write or to add). Between
  // HoldReductions and the next BeginMicroStep.
  virtual std::string GradientState() const = 0;
  // Puts `state`, from GradientState, in place of what is known. After the
  // repetition of a backward: what was known after the recorded one.
  virtual void SetGradientState(const std::string& state) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_HELD_GRADIENTS_H_
