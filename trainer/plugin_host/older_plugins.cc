// SPDX-License-Identifier: Apache-2.0
//
// Whoever adds a virtual function to an interface that plugins implement makes
// sure that it has a class here that forwards what the older version had.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/packed_parameters.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/strategy.h"
#include "trainer/plugin_host/plugin_host.h"

namespace capstan {
namespace {

// Minor 1 added depends_on_device and the functions after it.
class Precision0 final : public Precision {
 public:
  explicit Precision0(Precision* plugin) : plugin_(plugin) {}
  PrecisionPolicy policy() const override { return plugin_->policy(); }

 private:
  const std::unique_ptr<Precision> plugin_;
};

// Minor 1 added unit and DerivedFromLoss.
class Objective0 : public Objective {
 public:
  explicit Objective0(Objective* plugin) : plugin_(plugin) {}
  absl::Status Check(Model& model, const DatasetReader& data) const override {
    return plugin_->Check(model, data);
  }
  int64_t CountTargets(const Batch& batch,
                       const StepInfo& info) const override {
    return plugin_->CountTargets(batch, info);
  }
  int step_totals() const override { return plugin_->step_totals(); }
  std::vector<double> StepTotals(const Batch& batch,
                                 const StepInfo& info) const override {
    return plugin_->StepTotals(batch, info);
  }
  std::vector<MetricTags> metrics() const override {
    return plugin_->metrics();
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override {
    LossSum loss = plugin_->Compute(model, batch, info, runner);
    // Added in minor 1, past what the plugin has written.
    loss.padding = LossSum().padding;
    loss.trained = LossSum().trained;
    return loss;
  }
  absl::StatusOr<std::vector<double>> Measure(Model& model,
                                              const DatasetReader& eval_data,
                                              const MeasureInfo& info,
                                              UnitRunner& runner) override {
    return plugin_->Measure(model, eval_data, info, runner);
  }
  Measurement Summarize(absl::Span<const double> sums,
                        const MeasureInfo& info) const override {
    return plugin_->Summarize(sums, info);
  }
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override {
    return plugin_->Sample(model, prompt, options, runner);
  }

 private:
  const std::unique_ptr<Objective> plugin_;
};

// Minors 0 and 1.
class Optimizer1 : public Optimizer {
 public:
  explicit Optimizer1(Optimizer* plugin) : plugin_(plugin) {}
  double learning_rate() const override { return plugin_->learning_rate(); }
  std::vector<std::string> state_names() const override {
    return plugin_->state_names();
  }
  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    plugin_->Update(step, specs, shard, state);
  }

 protected:
  const std::unique_ptr<Optimizer> plugin_;
};

// Minor 3 added StateNumel and UpdateBytes.
class Optimizer2 final : public Optimizer1 {
 public:
  using Optimizer1::Optimizer1;
  absl::Status Check(const OptimizerRequest& request) const override {
    return plugin_->Check(request);
  }
  absl::Status Setup(const OptimizerContext& context) override {
    return plugin_->Setup(context);
  }
  bool NeedsWhole(const Model& model, int parameter) const override {
    return plugin_->NeedsWhole(model, parameter);
  }
  std::vector<OptimizerStateSpec> state_specs() const override {
    return plugin_->state_specs();
  }
};

// Refuses an optimizer that needs whole matrices where a strategy that can't
// know of it shards: the ranks would only find the cut after allocating.
absl::Status CheckCuts(const StrategyRequest& request,
                       const Strategy& strategy) {
  if (request.optimizer == nullptr || request.world_size == 1) {
    return absl::OkStatus();
  }
  const std::vector<ParameterSpec>& specs = request.model->parameters();
  int64_t trainable = 0;
  const ParameterSpec* whole = nullptr;
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    if (!specs[i].trainable) continue;
    trainable += specs[i].numel();
    if (whole == nullptr && request.optimizer->NeedsWhole(*request.model, i)) {
      whole = &specs[i];
    }
  }
  if (whole == nullptr ||
      strategy.Plan(request).optimizer_elements >= trainable) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the optimizer needs '", whole->name,
      "' whole, and the strategy, built for an older plugin API, may cut it: "
      "choose another strategy, or an optimizer that doesn't need whole "
      "matrices"));
}

// Refuses a model with packed parameters, which such a strategy would make in
// their shapes, of many times the size.
absl::Status CheckPacked(const StrategyRequest& request) {
  const std::vector<ParameterSpec>& specs = request.model->parameters();
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    if (PackedBytesOf(*request.model, i) == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "the model keeps '", specs[i].name,
        "' packed (quantize), of which the strategy, built for an older plugin "
        "API, knows nothing: choose another strategy, or build it anew"));
  }
  return absl::OkStatus();
}

// Minors 0 and 1.
class Strategy1 : public Strategy {
 public:
  explicit Strategy1(Strategy* plugin) : plugin_(plugin) {}
  absl::Status Check(const StrategyRequest& request) const override {
    CAPSTAN_RETURN_IF_ERROR(CheckPacked(request));
    CAPSTAN_RETURN_IF_ERROR(plugin_->Check(request));
    return CheckCuts(request, *plugin_);
  }
  StrategyPlan Plan(const StrategyRequest& request) const override {
    return plugin_->Plan(request);
  }
  absl::Status Setup(const StrategyContext& context) override {
    return plugin_->Setup(context);
  }
  absl::Span<OptimizerShard> OptimizerShards() override {
    return plugin_->OptimizerShards();
  }
  void BeginMicroStep(int index, int count) override {
    plugin_->BeginMicroStep(index, count);
  }
  bool wants_unit_callbacks() const override {
    return plugin_->wants_unit_callbacks();
  }
  void PreForward(int unit) override { plugin_->PreForward(unit); }
  void PostForward(int unit) override { plugin_->PostForward(unit); }
  void PreBackward(int unit) override { plugin_->PreBackward(unit); }
  bool collective_forward() const override {
    return plugin_->collective_forward();
  }
  void FinishForward() override { plugin_->FinishForward(); }
  void FinishBackward() override { plugin_->FinishBackward(); }
  at::Tensor GradientSquaredSum() override {
    return plugin_->GradientSquaredSum();
  }
  void PublishShard(int shard) override { plugin_->PublishShard(shard); }
  void PublishParameters() override { plugin_->PublishParameters(); }
  std::vector<OwnedSlice> OwnedSlices() const override {
    return plugin_->OwnedSlices();
  }
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int index, const at::Tensor& value)>& fn)
      override {
    return plugin_->ForEachFullParameter(fn);
  }

 protected:
  const std::unique_ptr<Strategy> plugin_;
};

// Minor 2.
class Strategy2 final : public Strategy1 {
 public:
  using Strategy1::Strategy1;
  absl::Status Check(const StrategyRequest& request) const override {
    CAPSTAN_RETURN_IF_ERROR(CheckPacked(request));
    return plugin_->Check(request);
  }
  void BeginStep(int64_t step) override { plugin_->BeginStep(step); }
  std::vector<std::string> state_names() const override {
    return plugin_->state_names();
  }
  std::vector<at::Tensor> ShardState(int shard) override {
    return plugin_->ShardState(shard);
  }
};

template <typename Adapter, typename Base>
void* Adapted(void* instance) {
  Base* const adapter = new Adapter(static_cast<Base*>(instance));
  return adapter;
}

}  // namespace

void* AdaptOlderPlugin(PluginCategory category, uint16_t minor,
                       void* instance) {
  switch (category) {
    case PluginCategory::kPrecision:
      if (minor < 1) return Adapted<Precision0, Precision>(instance);
      break;
    case PluginCategory::kObjective:
      if (minor < 1) return Adapted<Objective0, Objective>(instance);
      break;
    case PluginCategory::kOptimizer:
      if (minor < 2) return Adapted<Optimizer1, Optimizer>(instance);
      if (minor < 3) return Adapted<Optimizer2, Optimizer>(instance);
      break;
    case PluginCategory::kStrategy:
      if (minor < 2) return Adapted<Strategy1, Strategy>(instance);
      if (minor < 3) return Adapted<Strategy2, Strategy>(instance);
      break;
    default:
      break;
  }
  return instance;
}

}  // namespace capstan
