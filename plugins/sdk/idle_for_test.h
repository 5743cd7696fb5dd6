// SPDX-License-Identifier: Apache-2.0
//
// For tests: a model, an optimizer, a strategy and a group that do nothing, to
// derive from.
#ifndef CAPSTAN_PLUGINS_SDK_IDLE_FOR_TEST_H_
#define CAPSTAN_PLUGINS_SDK_IDLE_FOR_TEST_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"

namespace capstan {

class IdleModel : public Model {
 public:
  IdleModel(std::vector<ParameterSpec> specs, int units)
      : IdleModel(std::move(specs), std::vector<std::string>(units, "unit")) {}
  IdleModel(std::vector<ParameterSpec> specs, std::vector<std::string> units)
      : specs_(std::move(specs)), units_(std::move(units)) {}

  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int, uint64_t, int64_t, int64_t,
                            float*) const override {
    return absl::OkStatus();
  }
  void Bind(std::vector<at::Tensor>) override {}
  absl::Status SaveConfig(const std::string&, c10::ScalarType) const override {
    return absl::OkStatus();
  }

 private:
  const std::vector<ParameterSpec> specs_;
  const std::vector<std::string> units_;
};

// Wants matrices whole.
class IdleMatrixOptimizer : public Optimizer {
 public:
  double learning_rate() const override { return 1.0; }
  std::vector<std::string> state_names() const override { return {}; }
  void Update(const OptimizerStep&, const std::vector<ParameterSpec>&,
              OptimizerShard&, absl::Span<at::Tensor>) override {}
  bool NeedsWhole(const Model& model, int parameter) const override {
    return model.parameters()[parameter].shape.size() == 2;
  }
};

class IdleStrategy : public Strategy {
 public:
  absl::Status Check(const StrategyRequest&) const override {
    return absl::OkStatus();
  }
  StrategyPlan Plan(const StrategyRequest&) const override { return {}; }
  absl::Status Setup(const StrategyContext&) override {
    return absl::OkStatus();
  }
  absl::Span<OptimizerShard> OptimizerShards() override { return {}; }
  void BeginMicroStep(int, int) override {}
  void FinishBackward() override {}
  at::Tensor GradientSquaredSum() override { return {}; }
  void PublishParameters(PublishCause) override {}
  std::vector<OwnedSlice> OwnedSlices() const override { return {}; }
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>&) override {
    return absl::OkStatus();
  }
};

class IdleWork : public Work {
 public:
  void Wait() override {}
};

// A rank, without the others.
class IdleGroup : public ProcessGroup {
 public:
  IdleGroup(int rank, int size) : rank_(rank), size_(size) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  at::Device device() const override { return at::kCPU; }
  std::string backend() const override { return "none"; }
  std::unique_ptr<Work> AllReduce(const at::Tensor&) override {
    return std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor&,
                                      const at::Tensor&) override {
    return std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> AllGather(const at::Tensor&,
                                  const at::Tensor&) override {
    return std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor&, int) override {
    return std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> AllToAll(const at::Tensor&,
                                 const at::Tensor&) override {
    return std::make_unique<IdleWork>();
  }
  std::unique_ptr<Work> SendRecv(const at::Tensor&, int, const at::Tensor&,
                                 int) override {
    return std::make_unique<IdleWork>();
  }
  void AllReduceHost(absl::Span<double>) override {}
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int) override {
    return absl::UnimplementedError("an IdleGroup can't be split");
  }
  CommunicationStats stats() const override { return {}; }

 private:
  const int rank_;
  const int size_;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_IDLE_FOR_TEST_H_
