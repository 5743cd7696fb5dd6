// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_DILOCO_WRAPPING_H_
#define CAPSTAN_STRATEGIES_DILOCO_WRAPPING_H_

#include <memory>
#include <utility>
#include <vector>

#include "plugins/sdk/strategy.h"

namespace capstan::diloco {

// Has another strategy do all that concerns a single replica.
class WrappingStrategy : public Strategy {
 public:
  explicit WrappingStrategy(std::unique_ptr<Strategy> inner)
      : inner_(std::move(inner)) {}

  HeldGradients* held_gradients() override { return inner_->held_gradients(); }
  bool SumsEachMicroStep() const override {
    return inner_->SumsEachMicroStep();
  }
  absl::Span<OptimizerShard> OptimizerShards() override {
    return inner_->OptimizerShards();
  }
  void BeginStep(int64_t step) override { inner_->BeginStep(step); }
  void BeginMicroStep(int index, int count) override {
    inner_->BeginMicroStep(index, count);
  }
  bool wants_unit_callbacks() const override {
    return inner_->wants_unit_callbacks();
  }
  void PreForward(int unit) override { inner_->PreForward(unit); }
  void PostForward(int unit) override { inner_->PostForward(unit); }
  void PreBackward(int unit) override { inner_->PreBackward(unit); }
  bool collective_forward() const override {
    return inner_->collective_forward();
  }
  void FinishForward() override { inner_->FinishForward(); }
  void FinishBackward() override { inner_->FinishBackward(); }
  at::Tensor GradientSquaredSum() override {
    return inner_->GradientSquaredSum();
  }
  void PublishShard(int shard) override { inner_->PublishShard(shard); }
  void PublishParameters(PublishCause cause) override {
    inner_->PublishParameters(cause);
  }

 protected:
  Strategy& inner() { return *inner_; }
  const Strategy& inner() const { return *inner_; }

 private:
  const std::unique_ptr<Strategy> inner_;
};

}  // namespace capstan::diloco

#endif  // CAPSTAN_STRATEGIES_DILOCO_WRAPPING_H_
