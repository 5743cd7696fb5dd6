// SPDX-License-Identifier: Apache-2.0
//
// What all runs of the toy have in common, with a strategy or without.
#ifndef CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINING_H_
#define CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINING_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/precision.h"

namespace capstan {
namespace conformance {

constexpr uint64_t kToySeed = 1234;
constexpr double kToyLearningRate = 0.05;
// Low enough to act in some steps, high enough not to in others.
constexpr double kToyMaxNorm = 0.6;
// What losses are divided by in backward, about the targets of a step.
constexpr double kToyNominalTargets = 50.0;
// Of one rank's forward in an evaluation, and where those of rank 0 begin.
constexpr int64_t kToyEvalBatch = 3;
constexpr int64_t kToyEvalBegin = 100000;

PrecisionPolicy ToyFp32();
PrecisionPolicy ToyBf16();
PrecisionPolicy ToyFp16();

// m = 0.9 m + g; p = p (1 - lr decay) - lr m: linear in the gradient, so that
// a wrong factor shows, which Adam would hide; and with a state that carries
// what a step did wrong into all later ones.
void ToyUpdate(double learning_rate, const at::Tensor& gradient,
               const at::Tensor& momentum, const at::Tensor& master);

class ToyOptimizer final : public Optimizer {
 public:
  double learning_rate() const override { return kToyLearningRate; }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override;
};

// Clipping as the core does it.
inline double ToyClip(double norm) {
  return std::min(1.0, kToyMaxNorm / (norm + 1e-6));
}

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINING_H_
