// SPDX-License-Identifier: Apache-2.0
#include "testing/faults/faulty_plugins.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/strategy.h"
#include "plugins/sdk/token_model.h"
#include "testing/faults/fault_point.h"

namespace capstan {
namespace {

class FaultyPrecision final : public Precision {
 public:
  explicit FaultyPrecision(Precision* plugin) : plugin_(plugin) {}
  PrecisionPolicy policy() const override {
    FaultPoint::Pass("precision.policy");
    return plugin_->policy();
  }
  bool depends_on_device() const override {
    return plugin_->depends_on_device();
  }
  PrecisionPolicy PolicyOn(const DeviceFacts& device) const override {
    FaultPoint::Pass("precision.PolicyOn");
    return plugin_->PolicyOn(device);
  }
  std::string instead() const override { return plugin_->instead(); }
  bool UsesFp8(Fp8Spec* how) const override { return plugin_->UsesFp8(how); }

 private:
  const std::unique_ptr<Precision> plugin_;
};

class FaultyTokenModel final : public TokenModel, public RowLosses {
 public:
  explicit FaultyTokenModel(TokenModel* model) : model_(model) {}
  int64_t vocab_size() const override { return model_->vocab_size(); }
  int64_t max_positions() const override { return model_->max_positions(); }
  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override {
    FaultPoint::Pass("model.Logits");
    return model_->Logits(input, runner);
  }
  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override {
    FaultPoint::Pass("model.CrossEntropySum");
    return model_->CrossEntropySum(input, targets, runner);
  }
  at::Tensor RegularizedSum(const TokenInput& input,
                            const TokenTargets& targets,
                            const Regularization& how,
                            UnitRunner& runner) override {
    FaultPoint::Pass("model.RegularizedSum");
    return model_->RegularizedSum(input, targets, how, runner);
  }
  bool regularizes() const override { return model_->regularizes(); }
  bool causal() const override { return model_->causal(); }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("model.NewCache"));
    return model_->NewCache(batch, max_length);
  }
  int64_t eos_token() const override { return model_->eos_token(); }
  int64_t mask_token() const override { return model_->mask_token(); }
  std::string sampling_objective() const override {
    return model_->sampling_objective();
  }
  std::vector<int64_t> other_end_tokens() const override {
    return model_->other_end_tokens();
  }
  std::string generation_config() const override {
    return model_->generation_config();
  }
  bool takes_host_targets() const override {
    return model_->takes_host_targets();
  }
  at::Tensor LastLogits(const TokenInput& input, UnitRunner& runner) override {
    FaultPoint::Pass("model.LastLogits");
    return model_->LastLogits(input, runner);
  }
  bool skips_other_logits() const override {
    return model_->skips_other_logits();
  }
  absl::Status SetSequenceGroup(ProcessGroup* group,
                                bool deterministic) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("model.SetSequenceGroup"));
    return model_->SetSequenceGroup(group, deterministic);
  }
  RowLosses* row_losses() override {
    return model_->row_losses() == nullptr ? nullptr : this;
  }
  at::Tensor CrossEntropyRows(const TokenInput& input,
                              const at::Tensor& targets,
                              UnitRunner& runner) override {
    FaultPoint::Pass("model.CrossEntropyRows");
    return model_->row_losses()->CrossEntropyRows(input, targets, runner);
  }

 private:
  TokenModel* const model_;
};

class FaultyModel final : public Model, public InferenceWeights {
 public:
  explicit FaultyModel(Model* plugin) : plugin_(plugin) {
    if (TokenModel* const tokens = plugin->token_model()) {
      tokens_ = std::make_unique<FaultyTokenModel>(tokens);
    }
  }
  const std::vector<ParameterSpec>& parameters() const override {
    return plugin_->parameters();
  }
  const std::vector<std::string>& units() const override {
    return plugin_->units();
  }
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("model.InitialValue"));
    return plugin_->InitialValue(index, seed, begin, count, out);
  }
  int64_t PackedBytes(int index) const override {
    return plugin_->PackedBytes(index);
  }
  absl::Status PackedValue(int index, int64_t begin, int64_t count,
                           uint8_t* out) const override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("model.PackedValue"));
    return plugin_->PackedValue(index, begin, count, out);
  }
  void Unpack(int index, const uint8_t* bytes, float* out) const override {
    FaultPoint::Pass("model.Unpack");
    plugin_->Unpack(index, bytes, out);
  }
  void Bind(std::vector<at::Tensor> parameters) override {
    FaultPoint::Pass("model.Bind");
    plugin_->Bind(std::move(parameters));
  }
  void BindGradients(GradientSink* sink) override {
    plugin_->BindGradients(sink);
  }
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("model.SaveConfig"));
    return plugin_->SaveConfig(folder, dtype);
  }
  std::vector<UnitMemory> PlanUnits(int64_t samples, int64_t length,
                                    c10::ScalarType compute) const override {
    FaultPoint::Pass("model.PlanUnits");
    return plugin_->PlanUnits(samples, length, compute);
  }
  absl::Status SetModulesToSave(std::vector<std::string> modules) override {
    return plugin_->SetModulesToSave(std::move(modules));
  }
  std::vector<std::string> SavedNames(int index) const override {
    return plugin_->SavedNames(index);
  }
  absl::Status AddLora(const LoraSpec& spec) override {
    return plugin_->AddLora(spec);
  }
  bool has_adapter() const override { return plugin_->has_adapter(); }
  void SetAdapterEnabled(bool enabled) override {
    plugin_->SetAdapterEnabled(enabled);
  }
  TokenModel* token_model() override { return tokens_.get(); }
  std::string SaveState() const override { return plugin_->SaveState(); }
  absl::Status RestoreState(absl::string_view state) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("model.RestoreState"));
    return plugin_->RestoreState(state);
  }
  absl::Status SetFp8(const Fp8Spec& how) override {
    return plugin_->SetFp8(how);
  }
  ParameterRole role(int parameter) const override {
    return plugin_->role(parameter);
  }
  absl::optional<TokenShare> ShareOf(int parameter) const override {
    return plugin_->ShareOf(parameter);
  }
  InferenceWeights* inference_weights() override {
    return plugin_->inference_weights() == nullptr ? nullptr : this;
  }
  at::Tensor StoredWeight(int index) const override {
    FaultPoint::Pass("model.StoredWeight");
    return plugin_->inference_weights()->StoredWeight(index);
  }
  absl::Status BindForInference(std::vector<at::Tensor> weights,
                                WeightForm form) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("model.BindForInference"));
    return plugin_->inference_weights()->BindForInference(std::move(weights),
                                                          form);
  }

 private:
  const std::unique_ptr<Model> plugin_;
  std::unique_ptr<TokenModel> tokens_;
};

class FaultyObjective final : public Objective {
 public:
  explicit FaultyObjective(Objective* plugin) : plugin_(plugin) {}
  absl::Status Check(Model& model, const DatasetReader& data) const override {
    return plugin_->Check(model, data);
  }
  int64_t CountTargets(const Batch& batch,
                       const StepInfo& info) const override {
    FaultPoint::Pass("objective.CountTargets");
    return plugin_->CountTargets(batch, info);
  }
  int step_totals() const override { return plugin_->step_totals(); }
  std::vector<double> StepTotals(const Batch& batch,
                                 const StepInfo& info) const override {
    FaultPoint::Pass("objective.StepTotals");
    return plugin_->StepTotals(batch, info);
  }
  std::vector<MetricTags> metrics() const override {
    return plugin_->metrics();
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override {
    FaultPoint::Pass("objective.Compute");
    return plugin_->Compute(model, batch, info, runner);
  }
  absl::StatusOr<std::vector<double>> Measure(Model& model,
                                              const DatasetReader& eval_data,
                                              const MeasureInfo& info,
                                              UnitRunner& runner) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("objective.Measure"));
    return plugin_->Measure(model, eval_data, info, runner);
  }
  Measurement Summarize(absl::Span<const double> sums,
                        const MeasureInfo& info) const override {
    FaultPoint::Pass("objective.Summarize");
    return plugin_->Summarize(sums, info);
  }
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("objective.Sample"));
    return plugin_->Sample(model, prompt, options, runner);
  }
  absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      Model& model, absl::Span<const BatchPrompt> prompts,
      const SampleOptions& options, const Ended& ended,
      UnitRunner& runner) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("objective.SampleBatch"));
    return plugin_->SampleBatch(model, prompts, options, ended, runner);
  }
  absl::StatusOr<std::vector<Beam>> SearchBeams(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, const BeamSettings& settings,
      UnitRunner& runner) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("objective.SearchBeams"));
    return plugin_->SearchBeams(model, prompt, options, settings, runner);
  }
  std::string unit() const override { return plugin_->unit(); }
  std::vector<std::pair<std::string, double>> DerivedFromLoss(
      double loss) const override {
    FaultPoint::Pass("objective.DerivedFromLoss");
    return plugin_->DerivedFromLoss(loss);
  }
  void KeepContext(bool keep) override {
    FaultPoint::Pass("objective.KeepContext");
    plugin_->KeepContext(keep);
  }
  std::string SaveState() const override { return plugin_->SaveState(); }
  absl::Status RestoreState(absl::string_view state) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("objective.RestoreState"));
    return plugin_->RestoreState(state);
  }
  bool allows_divided_rows() const override {
    return plugin_->allows_divided_rows();
  }
  bool has_whole_sums() const override { return plugin_->has_whole_sums(); }
  bool has_rollouts() const override { return plugin_->has_rollouts(); }
  absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                       const RolloutInfo& info, UnitRunner& runner) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("objective.Rollout"));
    return plugin_->Rollout(model, batches, info, runner);
  }
  absl::optional<OwnCurve> own_curve() const override {
    return plugin_->own_curve();
  }

 private:
  const std::unique_ptr<Objective> plugin_;
};

class FaultyReader final : public DatasetReader {
 public:
  explicit FaultyReader(DatasetReader* plugin) : plugin_(plugin) {}
  int64_t size() const override { return plugin_->size(); }
  bool shuffle() const override { return plugin_->shuffle(); }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("dataset.Read"));
    return plugin_->Read(indices, batch);
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<DatasetReader> part,
                             plugin_->Validation());
    if (part == nullptr) return part;
    return std::make_unique<FaultyReader>(part.release());
  }
  int64_t max_sequence_length() const override {
    return plugin_->max_sequence_length();
  }
  int64_t sample_length(int64_t index) const override {
    FaultPoint::Pass("dataset.sample_length");
    return plugin_->sample_length(index);
  }
  std::vector<std::string> notes() const override { return plugin_->notes(); }
  const Tokenizer* tokenizer() const override { return plugin_->tokenizer(); }
  std::vector<int64_t> PromptIds(absl::string_view text) const override {
    FaultPoint::Pass("dataset.PromptIds");
    return plugin_->PromptIds(text);
  }
  bool draws_anew() const override { return plugin_->draws_anew(); }
  std::vector<CountedFile> counted_files() const override {
    return plugin_->counted_files();
  }
  absl::StatusOr<std::string> Digest() const override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("dataset.Digest"));
    return plugin_->Digest();
  }

 private:
  const std::unique_ptr<DatasetReader> plugin_;
};

class FaultyOptimizer final : public Optimizer {
 public:
  explicit FaultyOptimizer(Optimizer* plugin) : plugin_(plugin) {}
  double learning_rate() const override { return plugin_->learning_rate(); }
  std::vector<std::string> state_names() const override {
    return plugin_->state_names();
  }
  void Update(const OptimizerStep& step,
              const std::vector<ParameterSpec>& specs, OptimizerShard& shard,
              absl::Span<at::Tensor> state) override {
    FaultPoint::Pass("optimizer.Update");
    plugin_->Update(step, specs, shard, state);
  }
  absl::Status Check(const OptimizerRequest& request) const override {
    return plugin_->Check(request);
  }
  absl::Status Setup(const OptimizerContext& context) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("optimizer.Setup"));
    return plugin_->Setup(context);
  }
  bool NeedsWhole(const Model& model, int parameter) const override {
    return plugin_->NeedsWhole(model, parameter);
  }
  std::vector<OptimizerStateSpec> state_specs() const override {
    FaultPoint::Pass("optimizer.state_specs");
    return plugin_->state_specs();
  }
  int64_t StateNumel(const ParameterSpec& parameter, int state) const override {
    return plugin_->StateNumel(parameter, state);
  }
  int64_t UpdateBytes(const UpdateMemoryRequest& request) const override {
    return plugin_->UpdateBytes(request);
  }

 private:
  const std::unique_ptr<Optimizer> plugin_;
};

class FaultyStrategy final : public Strategy, public HeldGradients {
 public:
  explicit FaultyStrategy(Strategy* plugin) : plugin_(plugin) {}
  absl::Status Check(const StrategyRequest& request) const override {
    return plugin_->Check(request);
  }
  StrategyPlan Plan(const StrategyRequest& request) const override {
    FaultPoint::Pass("strategy.Plan");
    return plugin_->Plan(request);
  }
  absl::Status Setup(const StrategyContext& context) override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("strategy.Setup"));
    return plugin_->Setup(context);
  }
  absl::Span<OptimizerShard> OptimizerShards() override {
    FaultPoint::Pass("strategy.OptimizerShards");
    return plugin_->OptimizerShards();
  }
  void BeginMicroStep(int index, int count) override {
    FaultPoint::Pass("strategy.BeginMicroStep");
    plugin_->BeginMicroStep(index, count);
  }
  bool wants_unit_callbacks() const override {
    return plugin_->wants_unit_callbacks();
  }
  void PreForward(int unit) override {
    FaultPoint::Pass("strategy.PreForward");
    plugin_->PreForward(unit);
  }
  void PostForward(int unit) override {
    FaultPoint::Pass("strategy.PostForward");
    plugin_->PostForward(unit);
  }
  void PreBackward(int unit) override {
    FaultPoint::Pass("strategy.PreBackward");
    plugin_->PreBackward(unit);
  }
  bool collective_forward() const override {
    return plugin_->collective_forward();
  }
  void FinishForward() override {
    FaultPoint::Pass("strategy.FinishForward");
    plugin_->FinishForward();
  }
  void FinishBackward() override {
    FaultPoint::Pass("strategy.FinishBackward");
    plugin_->FinishBackward();
  }
  at::Tensor GradientSquaredSum() override {
    FaultPoint::Pass("strategy.GradientSquaredSum");
    return plugin_->GradientSquaredSum();
  }
  void PublishShard(int shard) override {
    FaultPoint::Pass("strategy.PublishShard");
    plugin_->PublishShard(shard);
  }
  void PublishParameters(PublishCause cause) override {
    FaultPoint::Pass("strategy.PublishParameters");
    plugin_->PublishParameters(cause);
  }
  std::vector<OwnedSlice> OwnedSlices() const override {
    FaultPoint::Pass("strategy.OwnedSlices");
    return plugin_->OwnedSlices();
  }
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int index, const at::Tensor& value)>& fn)
      override {
    CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("strategy.ForEachFullParameter"));
    return plugin_->ForEachFullParameter(fn);
  }
  void BeginStep(int64_t step) override {
    FaultPoint::Pass("strategy.BeginStep");
    plugin_->BeginStep(step);
  }
  std::vector<std::string> state_names() const override {
    return plugin_->state_names();
  }
  std::vector<at::Tensor> ShardState(int shard) override {
    FaultPoint::Pass("strategy.ShardState");
    return plugin_->ShardState(shard);
  }
  bool SumsEachMicroStep() const override {
    return plugin_->SumsEachMicroStep();
  }
  HeldGradients* held_gradients() override {
    return plugin_->held_gradients() == nullptr ? nullptr : this;
  }
  void FixGradients() override {
    FaultPoint::Pass("strategy.FixGradients");
    plugin_->held_gradients()->FixGradients();
  }
  void HoldReductions() override {
    FaultPoint::Pass("strategy.HoldReductions");
    plugin_->held_gradients()->HoldReductions();
  }
  at::Tensor held() override { return plugin_->held_gradients()->held(); }
  std::string GradientState() const override {
    return plugin_->held_gradients()->GradientState();
  }
  void SetGradientState(const std::string& state) override {
    plugin_->held_gradients()->SetGradientState(state);
  }
  absl::optional<OwnCurve> own_curve() const override {
    return plugin_->own_curve();
  }
  bool local_steps() const override { return plugin_->local_steps(); }
  at::Tensor SharedMaster(int shard) override {
    FaultPoint::Pass("strategy.SharedMaster");
    return plugin_->SharedMaster(shard);
  }
  void UseSharedModel(bool use) override {
    FaultPoint::Pass("strategy.UseSharedModel");
    plugin_->UseSharedModel(use);
  }
  void EndStep(int64_t step) override {
    FaultPoint::Pass("strategy.EndStep");
    plugin_->EndStep(step);
  }
  void BeforeExport() override {
    FaultPoint::Pass("strategy.BeforeExport");
    plugin_->BeforeExport();
  }
  ProcessGroup* replica_group() override { return plugin_->replica_group(); }
  std::vector<OwnedSlice> ReplicaSlices() const override {
    return plugin_->ReplicaSlices();
  }
  void Restored(int64_t step) override { plugin_->Restored(step); }

 private:
  const std::unique_ptr<Strategy> plugin_;
};

// A `Faulty` around the `Base*` in `instance`.
template <typename Base, typename Faulty>
void* Made(void* instance) {
  return static_cast<Base*>(new Faulty(static_cast<Base*>(instance)));
}

}  // namespace

void* WithFaultPoints(PluginCategory category, void* instance) {
  switch (category) {
    case PluginCategory::kModel:
      return Made<Model, FaultyModel>(instance);
    case PluginCategory::kObjective:
      return Made<Objective, FaultyObjective>(instance);
    case PluginCategory::kOptimizer:
      return Made<Optimizer, FaultyOptimizer>(instance);
    case PluginCategory::kStrategy:
      return Made<Strategy, FaultyStrategy>(instance);
    case PluginCategory::kPrecision:
      return Made<Precision, FaultyPrecision>(instance);
    case PluginCategory::kDatasetReader:
      return Made<DatasetReader, FaultyReader>(instance);
    default:
      return instance;
  }
}

}  // namespace capstan
