// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_ACCURACY_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_ACCURACY_H_

#include <ATen/core/Tensor.h>

#include "plugins/sdk/model.h"

namespace capstan {

// LossSum::metrics with one row, [1, 2] float64: at how many of `targets`
// ([B, T] int64, negative: none) the likeliest token is the target, and how
// many there are. Runs the model anew, a row at a time, so that only one row's
// logits exist. Without gradients.
at::Tensor CountCorrect(TokenModel& model, const TokenInput& input,
                        const at::Tensor& targets, UnitRunner& runner);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_ACCURACY_H_
