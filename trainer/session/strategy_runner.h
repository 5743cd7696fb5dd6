// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_
#define CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_

#include <utility>

#include "plugins/sdk/model.h"
#include "plugins/sdk/strategy.h"
#include "trainer/memory/memory_plan.h"

namespace capstan {

// Runs a model's units between a strategy's callbacks. Free of cost for
// strategies without callbacks.
class StrategyRunner final : public UnitRunner {
 public:
  explicit StrategyRunner(Strategy* strategy,
                          const ActivationCheckpointing& checkpointing = {})
      : strategy_(strategy), checkpointing_(checkpointing) {}
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override;

  // Whether a unit has run since this was last called.
  bool TakeRan() { return std::exchange(ran_, false); }

 private:
  Strategy* const strategy_;
  bool ran_ = false;
  const ActivationCheckpointing checkpointing_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_
