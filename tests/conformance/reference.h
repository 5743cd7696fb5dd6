// SPDX-License-Identifier: Apache-2.0
//
// What every strategy has to equal: the toy trained in one process by plain
// autograd, one tensor a parameter, with nothing of any strategy.
#ifndef CAPSTAN_TESTS_CONFORMANCE_REFERENCE_H_
#define CAPSTAN_TESTS_CONFORMANCE_REFERENCE_H_

#include <string>
#include <vector>

#include "plugins/sdk/precision.h"

namespace capstan {
namespace conformance {

// A training run of the toy.
struct Curve {
  std::vector<double> losses;   // means over a step's targets
  std::vector<double> norms;    // of the mean's gradient, before clipping
  std::vector<double> applied;  // 0 where the step was skipped
  // Evaluations of batch 0 to 3 (of rank 0 to 3) before the first step and
  // after each.
  std::vector<std::vector<double>> evals;
  // By parameter, after the last step; empty momenta for the frozen.
  std::vector<std::vector<double>> values;
  std::vector<std::vector<double>> momenta;
  std::string failure;
};

struct ReferenceOptions {
  // Computed in float64 if all is float32 here: what float32 rounds is then
  // the strategy's error alone. Else as it says, rounding included.
  PrecisionPolicy precision;
  // Equal micro-batches that a step is made of. Bears on 16-bit rounding only.
  int micro_batches = 1;
  int steps = 0;
  // A step whose gradient is not finite; -1: none.
  int broken_step = -1;
  bool matrices = false;  // as ToyRun has it
};

// Computed once for equal options.
const Curve& ReferenceCurve(const ReferenceOptions& options);

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_REFERENCE_H_
