// SPDX-License-Identifier: Apache-2.0
//
// Parts of a toy run that do what the toy's do, but for what a test adds.
#ifndef CAPSTAN_TESTS_TRAIN_TOY_WRAPPERS_H_
#define CAPSTAN_TESTS_TRAIN_TOY_WRAPPERS_H_

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "strategies/common/replicated.h"

namespace capstan {

class WrappedData final : public DatasetReader {
 public:
  // `fault` may return an error or throw for a sample.
  WrappedData(std::unique_ptr<DatasetReader> data,
              std::function<absl::Status(int64_t sample)> fault)
      : data_(std::move(data)), fault_(std::move(fault)) {}
  int64_t size() const override { return data_->size(); }
  bool shuffle() const override { return data_->shuffle(); }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    for (const int64_t index : indices) {
      CAPSTAN_RETURN_IF_ERROR(fault_(index));
    }
    return data_->Read(indices, batch);
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }

 private:
  const std::unique_ptr<DatasetReader> data_;
  const std::function<absl::Status(int64_t)> fault_;
};

class WrappedObjective : public Objective {
 public:
  // Gets a training micro-batch's first position in the run's sequence and its
  // loss; it may throw.
  using Change = std::function<void(int64_t position, LossSum* loss)>;
  // One that runs units, too.
  using ChangeInUnits = std::function<void(Model& model, int64_t position,
                                           LossSum* loss, UnitRunner& runner)>;

  WrappedObjective(std::unique_ptr<Objective> objective, Change change)
      : WrappedObjective(std::move(objective),
                         [change = std::move(change)](
                             Model&, int64_t position, LossSum* loss,
                             UnitRunner&) { change(position, loss); }) {}
  WrappedObjective(std::unique_ptr<Objective> objective, ChangeInUnits change)
      : objective_(std::move(objective)), change_(std::move(change)) {}
  absl::Status Check(Model& model, const DatasetReader& data) const override {
    return objective_->Check(model, data);
  }
  int64_t CountTargets(const Batch& batch,
                       const StepInfo& info) const override {
    return objective_->CountTargets(batch, info);
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override {
    LossSum loss = objective_->Compute(model, batch, info, runner);
    if (info.training) {
      change_(model, batch.at(kSamplePosition)[0].item<int64_t>(), &loss,
              runner);
    }
    return loss;
  }
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override {
    return objective_->Sample(model, prompt, options, runner);
  }
  std::string SaveState() const override { return objective_->SaveState(); }
  absl::Status RestoreState(absl::string_view state) override {
    return objective_->RestoreState(state);
  }
  bool has_rollouts() const override { return objective_->has_rollouts(); }
  absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                       const RolloutInfo& info, UnitRunner& runner) override {
    return objective_->Rollout(model, batches, info, runner);
  }

 private:
  const std::unique_ptr<Objective> objective_;
  const ChangeInUnits change_;
};

class WrappedOptimizer final : public Optimizer {
 public:
  // `after` each update of a shard.
  WrappedOptimizer(std::unique_ptr<Optimizer> optimizer,
                   std::function<void(int64_t step, OptimizerShard& shard,
                                      absl::Span<at::Tensor> state)>
                       after)
      : optimizer_(std::move(optimizer)), after_(std::move(after)) {}
  double learning_rate() const override { return optimizer_->learning_rate(); }
  std::vector<std::string> state_names() const override {
    return optimizer_->state_names();
  }
  std::vector<OptimizerStateSpec> state_specs() const override {
    return optimizer_->state_specs();
  }
  int64_t StateNumel(const ParameterSpec& parameter, int state) const override {
    return optimizer_->StateNumel(parameter, state);
  }
  absl::Status Setup(const OptimizerContext& context) override {
    return optimizer_->Setup(context);
  }
  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    optimizer_->Update(step, specs, shard, state);
    after_(step.step, shard, state);
  }

 private:
  const std::unique_ptr<Optimizer> optimizer_;
  const std::function<void(int64_t, OptimizerShard&, absl::Span<at::Tensor>)>
      after_;
};

// Whole replicas, whose gradients are summed at once.
class OneBucket : public ReplicatedStrategy {
 public:
  absl::Status Check(const StrategyRequest&) const override {
    return absl::OkStatus();
  }
  absl::Status Setup(const StrategyContext& context) override {
    constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();
    return SetUp(context, kOneBucket, kOneBucket, nullptr);
  }
  void Reduce() override { group().AllReduce(gradients().Take(0))->Wait(); }
};

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TRAIN_TOY_WRAPPERS_H_
