// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_ROW_LOSSES_H_
#define CAPSTAN_PLUGINS_SDK_ROW_LOSSES_H_

#include <ATen/core/Tensor.h>

#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

// A TokenModel also derives from this if it can give the loss of each row
// apart, for objectives that compare texts; found by dynamic_cast.
class RowLosses {
 public:
  virtual ~RowLosses();

  // [S, B] float32: for each of S sets of targets and each row the sum of -log
  // softmax(logits)[target] over the positions with a target, with gradient.
  // targets: [S, B, T] int64, as TokenTargets::tokens; sets with a target at
  // the same position have the same one there. Logits exist only in pieces, as
  // in TokenModel::CrossEntropySum, and are computed again in backward, where
  // the rows' weights are known.
  //
  // As any forward of a model, this does all its work on tensors in
  // runner.Run, and only passes on what Run returns.
  virtual at::Tensor CrossEntropyRows(const TokenInput& input,
                                      const at::Tensor& targets,
                                      UnitRunner& runner) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_ROW_LOSSES_H_
