// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_
#define CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_

#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/strategy.h"
#include "trainer/memory/memory_plan.h"

namespace capstan {

// Runs a model's units between a strategy's callbacks. Free of cost for
// strategies without callbacks.
class StrategyRunner final : public UnitRunner {
 public:
  // `names`: the units', for profiling tools; null: not needed. Must outlive
  // this and the graphs that are made.
  explicit StrategyRunner(Strategy* strategy,
                          const ActivationCheckpointing& checkpointing = {},
                          const std::vector<std::string>* names = nullptr)
      : strategy_(strategy), checkpointing_(checkpointing), names_(names) {}
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override;

  // Whether a unit has run since this was last called.
  bool TakeRan() { return std::exchange(ran_, false); }

  // Without them (at first they are wanted) whoever turned them off calls the
  // strategy.
  void set_callbacks(bool wanted) { callbacks_ = wanted; }

 private:
  // As profiling tools know it.
  const char* NameOf(int unit) const {
    return names_ == nullptr ? "unit" : (*names_)[unit].c_str();
  }

  Strategy* const strategy_;
  bool ran_ = false;
  bool callbacks_ = true;
  const ActivationCheckpointing checkpointing_;
  const std::vector<std::string>* const names_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_
