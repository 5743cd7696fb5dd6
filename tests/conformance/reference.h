// SPDX-License-Identifier: Apache-2.0
//
// The reference for every strategy: the toy trained in one process by plain
// autograd, with one tensor per parameter and no strategy code.
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
  std::vector<double> norms;    // of the mean gradient, before clipping
  std::vector<double> applied;  // 0 where the step was skipped
  // Evaluations of batches 0 to 3 (of ranks 0 to 3) before the first step and
  // after each.
  std::vector<std::vector<double>> evals;
  // By parameter, after the last step; momenta of frozen ones are empty.
  std::vector<std::vector<double>> values;
  std::vector<std::vector<double>> momenta;
  std::string failure;
};

struct ReferenceOptions {
  // Computed in float64 if all of it is float32, so that float32 rounding is
  // the strategy's error alone. Otherwise as given, rounding included.
  PrecisionPolicy precision;
  // Number of equal micro-batches per step. Affects 16-bit rounding only.
  int micro_batches = 1;
  int steps = 0;
  // A step with a non-finite gradient; -1: none.
  int broken_step = -1;
  bool matrices = false;  // see ToyRun
};

// Computed once per set of options.
const Curve& ReferenceCurve(const ReferenceOptions& options);

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_REFERENCE_H_
