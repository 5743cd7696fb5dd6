// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/accuracy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

namespace capstan {

at::Tensor CountCorrect(TokenModel& model, const TokenInput& input,
                        const at::Tensor& targets, UnitRunner& runner) {
  const at::NoGradGuard no_gradients;
  at::Tensor counts = at::zeros({1, 2}, targets.options().dtype(at::kDouble));
  for (int64_t row = 0; row < targets.size(0); ++row) {
    TokenInput one;
    one.tokens = input.tokens.narrow(0, row, 1);
    if (input.positions.defined()) {
      one.positions = input.positions.narrow(0, row, 1);
    }
    const at::Tensor wanted = targets.narrow(0, row, 1);
    const at::Tensor chosen = model.Logits(one, runner).argmax(/*dim=*/-1);
    counts.select(1, 0).add_(chosen.eq(wanted).sum());
    counts.select(1, 1).add_(wanted.ge(0).sum());
  }
  return counts;
}

}  // namespace capstan
