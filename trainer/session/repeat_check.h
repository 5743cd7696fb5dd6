// SPDX-License-Identifier: Apache-2.0
//
// Checks that a micro-step's repeated work gives the same results as the usual
// run.
#ifndef CAPSTAN_TRAINER_SESSION_REPEAT_CHECK_H_
#define CAPSTAN_TRAINER_SESSION_REPEAT_CHECK_H_

#include <ATen/core/Tensor.h>

#include <string>

#include "plugins/sdk/objective.h"

namespace capstan {

// A loss's tensors and the gradients behind it.
struct MicroStepResults {
  at::Tensor sum, metrics, gradients;
};

// Returns which result differs in any bit; empty if none does. Waits for the
// device.
std::string Difference(const MicroStepResults& a, const MicroStepResults& b);

// For usual runs that differ among themselves (`usual` and `again`): returns
// whether `other` is about as far from `usual` as `again` is; false with NaN.
// Waits for the device.
bool IsLikeThem(const MicroStepResults& usual, const MicroStepResults& again,
                const MicroStepResults& other);

bool SameCounts(const LossSum& a, const LossSum& b);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_REPEAT_CHECK_H_
