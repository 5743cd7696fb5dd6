// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_ROW_LOSSES_H_
#define CAPSTAN_PLUGINS_SDK_ROW_LOSSES_H_

#include <ATen/core/Tensor.h>

#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

// A TokenModel also derives from this if it can compute a loss for each row,
// for objectives that compare texts; found by dynamic_cast.
class RowLosses {
 public:
  virtual ~RowLosses();

  // Returns [S, B] float32 with gradient: for each of S sets of targets and
  // each row, the sum of -log softmax(logits)[target] over the positions with a
  // target. targets: [S, B, T] int64, as TokenTargets::tokens; sets with a
  // target at the same position must have the same one there. Logits exist only
  // in chunks, as in TokenModel::CrossEntropySum, and are recomputed in
  // backward, where the rows' weights are known.
  //
  // Like any forward, this does all its work on tensors in runner.Run.
  virtual at::Tensor CrossEntropyRows(const TokenInput& input,
                                      const at::Tensor& targets,
                                      UnitRunner& runner) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_ROW_LOSSES_H_
