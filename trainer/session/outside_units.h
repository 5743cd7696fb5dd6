// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_OUTSIDE_UNITS_H_
#define CAPSTAN_TRAINER_SESSION_OUTSIDE_UNITS_H_

#include <ATen/record_function.h>

#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/parameters.h"

namespace capstan {

// While it lives, detects whether this thread's forward uses a trainable
// parameter outside of UnitRunner::Run. A strategy that shards may have freed
// it there; one that keeps parameters whole would hide the mistake. It observes
// LibTorch's operators except views, which slows them down, so only one forward
// of a run is checked. At most one may exist in a thread.
class OutsideUnits {
 public:
  // `specs` outlives this.
  explicit OutsideUnits(const std::vector<ParameterSpec>& specs);
  ~OutsideUnits();
  OutsideUnits(const OutsideUnits&) = delete;
  OutsideUnits& operator=(const OutsideUnits&) = delete;

  // The first use, "'lm_head.weight' in aten::linear"; "" if there was none.
  // Parameters are recognised by their shape, since only the strategy has the
  // tensors: another of that shape may be meant, and an objective's own leaf
  // with a gradient counts if it has a parameter's shape.
  const std::string& found() const { return found_; }

  // While it lives, this thread is inside Run.
  class Inside {
   public:
    Inside();
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
  };

 private:
  static std::unique_ptr<at::ObserverContext> OnOperator(
      const at::RecordFunction& function);
  void Look(const at::RecordFunction& function);

  const std::vector<ParameterSpec>& specs_;
  at::CallbackHandle handle_;
  std::string found_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_OUTSIDE_UNITS_H_
