// SPDX-License-Identifier: Apache-2.0
//
// Two forwards of one model side by side, unit by unit: strategies that gather
// a unit's parameters do so once for both, and see one forward.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_TWIN_RUNNER_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_TWIN_RUNNER_H_

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan {

// The units of a forward that is run later.
struct RecordedForward {
  struct Unit {
    int unit;
    UnitRunner::Body body;
  };
  at::Tensor input;  // of the first unit
  std::vector<Unit> units;
};

// Records what `forward` passes to its runner without running it. Each Run
// returns its input, so a forward may only pass on what it gets from one.
RecordedForward Record(const std::function<void(UnitRunner&)>& forward);

// The same while the model's adapter is switched off.
RecordedForward RecordWithoutAdapter(
    Model& model, const std::function<void(UnitRunner&)>& forward);

// Runs the recorded forward without gradients along with one through this: each
// of its units right before the same unit of the other.
class TwinRunner final : public UnitRunner {
 public:
  // `runner` outlives this.
  TwinRunner(RecordedForward twin, UnitRunner* runner);

  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override;

  // What the recorded forward's last unit returned.
  const at::Tensor& output() const { return *state_; }

 private:
  const RecordedForward twin_;
  UnitRunner* const runner_;
  size_t next_ = 0;
  // Shared with bodies that are run again in backward.
  const std::shared_ptr<at::Tensor> state_;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_TWIN_RUNNER_H_
