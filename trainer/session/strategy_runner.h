// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_
#define CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/strategy.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/session/whose_code.h"

namespace capstan {

class OffloadedInputs;  // offloaded_inputs.h

// Runs a model's units between a strategy's callbacks. Costs nothing for
// strategies without callbacks.
class StrategyRunner final : public UnitRunner {
 public:
  // `names` are the units', for profiling tools and errors, or null; `plugins`
  // are for errors. Both must outlive this and the autograd graphs that it
  // makes.
  explicit StrategyRunner(Strategy* strategy,
                          const ActivationCheckpointing& checkpointing = {},
                          const std::vector<std::string>* names = nullptr,
                          const PluginNames* plugins = nullptr);
  ~StrategyRunner() override;
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override;

  // Whether a unit has run since this was last called.
  bool TakeRan() { return std::exchange(ran_, false); }

  // Turns the strategy's callbacks on (the default) or off; while they are off,
  // the caller notifies the strategy itself.
  void set_callbacks(bool wanted) { callbacks_ = wanted; }

 private:
  void Call(void (Strategy::*callback)(int), const char* name, int unit);
  // Returns null if the units have no names.
  const std::string* NameOf(int unit) const {
    return names_ == nullptr ? nullptr : &(*names_)[unit];
  }

  Strategy* const strategy_;
  bool ran_ = false;
  bool callbacks_ = true;
  const ActivationCheckpointing checkpointing_;
  const std::vector<std::string>* const names_;
  const PluginNames* plugins_;
  std::unique_ptr<OffloadedInputs> offloaded_;  // null: none so far
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STRATEGY_RUNNER_H_
