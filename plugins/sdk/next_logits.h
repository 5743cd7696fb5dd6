// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_NEXT_LOGITS_H_
#define CAPSTAN_PLUGINS_SDK_NEXT_LOGITS_H_

#include <ATen/core/Tensor.h>

#include "plugins/sdk/token_model.h"

namespace capstan {

// A TokenModel also derives from this if it can compute the logits of each
// row's last token alone; found by dynamic_cast.
class NextLogits {
 public:
  virtual ~NextLogits();

  // Like TokenModel::Logits, for the last position only: [B, 1, V].
  virtual at::Tensor LastLogits(const TokenInput& input,
                                UnitRunner& runner) = 0;
};

// Returns the last position's logits, [B, 1, V], of any model.
inline at::Tensor LastLogitsOf(TokenModel& model, const TokenInput& input,
                               UnitRunner& runner) {
  if (auto* const next = dynamic_cast<NextLogits*>(&model)) {
    return next->LastLogits(input, runner);
  }
  return model.Logits(input, runner).narrow(1, input.tokens.size(1) - 1, 1);
}

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_NEXT_LOGITS_H_
