// SPDX-License-Identifier: Apache-2.0
//
// What all runs of the toy share, with or without a strategy.
#ifndef CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINING_H_
#define CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINING_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/precision.h"

namespace capstan {
namespace conformance {

constexpr uint64_t kToySeed = 1234;
constexpr double kToyLearningRate = 0.05;
// Low enough to clip some steps, high enough not to clip others.
constexpr double kToyMaxNorm = 0.6;
// The divisor of losses in backward: about the targets of a step.
constexpr double kToyNominalTargets = 50.0;
// Samples per rank in an evaluation, and the index of rank 0's first.
constexpr int64_t kToyEvalBatch = 3;
constexpr int64_t kToyEvalBegin = 100000;

PrecisionPolicy ToyFp32();
PrecisionPolicy ToyBf16();
PrecisionPolicy ToyFp16();

// m = 0.9 m + g; p = p (1 - lr decay) - lr m. Linear in the gradient, so that a
// wrong factor shows, which Adam would hide; the momentum carries the errors of
// one step into all later ones.
void ToyUpdate(double learning_rate, const at::Tensor& gradient,
               const at::Tensor& momentum, const at::Tensor& master);

// The update of one parameter by an optimizer that uses every option. A matrix
// inside the model is updated as a whole: by its momentum, normalised, after
// one Newton-Schulz step (1.5 X - 0.5 X X^T X). Others are updated elementwise,
// divided by 1 + the largest gradient so far in their block. `block` has one
// element per block; `count`, int64, is the number of updates, by whose square
// root all steps are divided.
constexpr int64_t kToyBlock = 64;
bool ToyNeedsWhole(const Model& model, int parameter);
void ToyMatrixUpdate(double learning_rate, bool whole,
                     const at::Tensor& gradient, const at::Tensor& momentum,
                     const at::Tensor& block, const at::Tensor& count,
                     const at::Tensor& master);

class ToyOptimizer final : public Optimizer {
 public:
  // matrices: use ToyMatrixUpdate.
  explicit ToyOptimizer(bool matrices = false) : matrices_(matrices) {}
  double learning_rate() const override { return kToyLearningRate; }
  std::vector<std::string> state_names() const override;
  std::vector<OptimizerStateSpec> state_specs() const override;
  absl::Status Setup(const OptimizerContext& context) override {
    model_ = context.model;
    return absl::OkStatus();
  }
  bool NeedsWhole(const Model& model, int parameter) const override {
    return matrices_ && ToyNeedsWhole(model, parameter);
  }
  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override;

 private:
  const bool matrices_;
  const Model* model_ = nullptr;
};

// Clips as the core does.
inline double ToyClip(double norm) {
  return std::min(1.0, kToyMaxNorm / (norm + 1e-6));
}

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINING_H_
