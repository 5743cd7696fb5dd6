// SPDX-License-Identifier: Apache-2.0
//
// Key functions of the interfaces: they put one copy of each vtable and
// type_info into the process, in the core.
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "absl/strings/match.h"
#include "kernels/context/work_recorder.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/part.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "plugins/sdk/text_batch.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

BatchedCache::~BatchedCache() = default;
void BatchedCache::ExpectLengths(const std::vector<int64_t>&) {}
ChatTemplate::~ChatTemplate() = default;
absl::StatusOr<RenderedChat> ChatTemplate::RenderInput(const ChatInput&) const {
  return absl::UnimplementedError("this template renders plain messages only");
}
Collector::~Collector() = default;
Command::~Command() = default;
CommandHost::~CommandHost() = default;
DatasetReader::~DatasetReader() = default;

bool TakesHostTargets(const TokenModel& model) {
  return !WorkIsRepeated() && model.takes_host_targets();
}

Flag::~Flag() = default;
Flags::~Flags() = default;
void Flags::AddRest(std::vector<std::string>*) {}
HeldGradients::~HeldGradients() = default;
InferenceWeights::~InferenceWeights() = default;
JoinableCache::~JoinableCache() = default;
KvCache::~KvCache() = default;
Model::~Model() = default;
Objective::~Objective() = default;
Optimizer::~Optimizer() = default;
Part::~Part() = default;
Precision::~Precision() = default;
ProcessGroup::~ProcessGroup() = default;
RowLosses::~RowLosses() = default;
Strategy::~Strategy() = default;
TextBatch::~TextBatch() = default;
TextBatching::~TextBatching() = default;
TextScores::~TextScores() = default;
Tokenizer::~Tokenizer() = default;
TokenModel::~TokenModel() = default;
UnitRunner::~UnitRunner() = default;
Work::~Work() = default;

at::Tensor PlainRunner::Run(int, const at::Tensor& input, const Body& body) {
  return body(input);
}

at::Tensor TokenModel::LastLogits(const TokenInput& input, UnitRunner& runner) {
  return Logits(input, runner).narrow(1, input.tokens.size(1) - 1, 1);
}

double LoraSpec::scale() const {
  const double rank = static_cast<double>(this->rank);
  return alpha / (rslora ? std::sqrt(rank) : rank);
}

std::vector<OptimizerStateSpec> Optimizer::state_specs() const {
  std::vector<OptimizerStateSpec> specs;
  for (const std::string& name : state_names()) {
    specs.emplace_back();
    specs.back().name = name;
  }
  return specs;
}

int64_t Optimizer::UpdateBytes(const UpdateMemoryRequest& request) const {
  constexpr int64_t kWholeBytes = 16;
  int64_t bytes = 0;
  if (!request.on_gpu) return bytes;
  const std::vector<ParameterSpec>& specs = request.model->parameters();
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].trainable && NeedsWhole(*request.model, static_cast<int>(i))) {
      bytes = std::max(bytes, kWholeBytes * specs[i].numel());
    }
  }
  return bytes;
}

absl::Status Model::PackedValue(int, int64_t, int64_t, uint8_t*) const {
  return absl::UnimplementedError("this model packs no parameter");
}

absl::Status Model::SetModulesToSave(std::vector<std::string>) {
  return FieldError("modules_to_save",
                    "this model can't train modules beside an adapter: leave "
                    "it out");
}

ParameterRole Model::role(int parameter) const {
  const ParameterSpec& spec = parameters()[parameter];
  if (spec.shape.size() > 1 && !spec.read_in_backward) {
    return ParameterRole::kEmbedding;
  }
  if (spec.shape.size() == 2) {
    const bool last = spec.unit + 1 == static_cast<int>(units().size());
    return last ? ParameterRole::kHead : ParameterRole::kMatrix;
  }
  return spec.shape.size() == 1 && absl::StrContains(spec.name, "norm")
             ? ParameterRole::kNorm
             : ParameterRole::kOther;
}

int64_t ParameterSpec::numel() const {
  int64_t n = 1;
  for (int64_t d : shape) n *= d;
  return n;
}

// Defaults of the functions that took the place of a Room.
std::string Objective::SaveState() const { return ""; }
absl::Status Objective::RestoreState(absl::string_view) {
  return absl::UnimplementedError("this objective has no state");
}
bool Objective::has_rollouts() const { return false; }
absl::Status Objective::Rollout(Model&, std::vector<Batch>*, const RolloutInfo&,
                                UnitRunner&) {
  return absl::OkStatus();
}
absl::optional<OwnCurve> Objective::own_curve() const { return absl::nullopt; }
bool Objective::allows_divided_rows() const { return false; }
RolloutPlan Objective::rollout_plan() const { return {}; }
bool Objective::has_whole_sums() const { return false; }

at::Tensor RowLosses::TokenLogProbs(const TokenInput&, const at::Tensor&,
                                    double, at::Tensor*, UnitRunner&) {
  throw std::logic_error("this model has no log-probabilities of tokens");
}
bool RowLosses::has_token_log_probs() const { return false; }

std::string Model::SaveState() const { return ""; }
absl::Status Model::RestoreState(absl::string_view) {
  return absl::UnimplementedError("this model has no state");
}
absl::Status Model::SetFp8(const Fp8Spec&) {
  return absl::UnimplementedError(
      "this model can't multiply in 8 bits: set precision=capstan.bf16");
}

bool Precision::UsesFp8(Fp8Spec*) const { return false; }

absl::Status TokenModel::SetSequenceGroup(ProcessGroup*, bool) {
  return absl::UnimplementedError("this model can't divide rows among ranks");
}

at::Tensor TokenModel::RegularizedSum(const TokenInput&, const TokenTargets&,
                                      const Regularization&, UnitRunner&) {
  throw std::logic_error("this model can't regularise its loss");
}
bool TokenModel::regularizes() const { return false; }
TextScores* TokenModel::text_scores() { return nullptr; }

ProcessGroup* Strategy::replica_group() { return nullptr; }
std::vector<OwnedSlice> Strategy::ReplicaSlices() const { return {}; }
void Strategy::Restored(int64_t) {}

// What a plugin older than such a function has in its place: the symbol of the
// Room, a member function without arguments, which is called as the new one.
// Both ABIs pass `this` as the first argument.
#define CAPSTAN_FORMER_ROOM(mangled, result, name, arguments) \
  result name arguments __asm__(mangled);                     \
  __attribute__((visibility("default"))) result name arguments

CAPSTAN_FORMER_ROOM("_ZN7capstan9Objective5Room1Ev", std::string,
                    ObjectiveRoom1, (const Objective* self)) {
  return self->Objective::SaveState();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9Objective5Room2Ev", absl::Status,
                    ObjectiveRoom2,
                    (Objective * self, absl::string_view state)) {
  return self->Objective::RestoreState(state);
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9Objective5Room3Ev", bool, ObjectiveRoom3,
                    (const Objective* self)) {
  return self->Objective::has_rollouts();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9Objective5Room4Ev", absl::Status,
                    ObjectiveRoom4,
                    (Objective * self, Model& model,
                     std::vector<Batch>* batches, const RolloutInfo& info,
                     UnitRunner& runner)) {
  return self->Objective::Rollout(model, batches, info, runner);
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9Objective5Room5Ev", absl::optional<OwnCurve>,
                    ObjectiveRoom5, (const Objective* self)) {
  return self->Objective::own_curve();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9Objective5Room6Ev", bool, ObjectiveRoom6,
                    (const Objective* self)) {
  return self->Objective::allows_divided_rows();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9Objective5Room7Ev", RolloutPlan,
                    ObjectiveRoom7, (const Objective* self)) {
  return self->Objective::rollout_plan();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9Objective5Room8Ev", bool, ObjectiveRoom8,
                    (const Objective* self)) {
  return self->Objective::has_whole_sums();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9RowLosses5Room1Ev", at::Tensor, RowLossesRoom1,
                    (RowLosses * self, const TokenInput& input,
                     const at::Tensor& targets, double temperature,
                     at::Tensor* entropy, UnitRunner& runner)) {
  return self->RowLosses::TokenLogProbs(input, targets, temperature, entropy,
                                        runner);
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9RowLosses5Room2Ev", bool, RowLossesRoom2,
                    (const RowLosses* self)) {
  return self->RowLosses::has_token_log_probs();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan5Model5Room1Ev", std::string, ModelRoom1,
                    (const Model* self)) {
  return self->Model::SaveState();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan5Model5Room2Ev", absl::Status, ModelRoom2,
                    (Model * self, absl::string_view state)) {
  return self->Model::RestoreState(state);
}
CAPSTAN_FORMER_ROOM("_ZN7capstan5Model5Room3Ev", absl::Status, ModelRoom3,
                    (Model * self, const Fp8Spec& how)) {
  return self->Model::SetFp8(how);
}
CAPSTAN_FORMER_ROOM("_ZN7capstan9Precision5Room1Ev", bool, PrecisionRoom1,
                    (const Precision* self, Fp8Spec* how)) {
  return self->Precision::UsesFp8(how);
}
CAPSTAN_FORMER_ROOM("_ZN7capstan10TokenModel5Room1Ev", absl::Status,
                    TokenModelRoom1,
                    (TokenModel * self, ProcessGroup* group,
                     bool deterministic)) {
  return self->TokenModel::SetSequenceGroup(group, deterministic);
}
CAPSTAN_FORMER_ROOM("_ZN7capstan10TokenModel5Room2Ev", at::Tensor,
                    TokenModelRoom2,
                    (TokenModel * self, const TokenInput& input,
                     const TokenTargets& targets, const Regularization& how,
                     UnitRunner& runner)) {
  return self->TokenModel::RegularizedSum(input, targets, how, runner);
}
CAPSTAN_FORMER_ROOM("_ZN7capstan10TokenModel5Room3Ev", bool, TokenModelRoom3,
                    (const TokenModel* self)) {
  return self->TokenModel::regularizes();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan10TokenModel5Room4Ev", TextScores*,
                    TokenModelRoom4, (TokenModel * self)) {
  return self->TokenModel::text_scores();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan8Strategy5Room1Ev", ProcessGroup*,
                    StrategyRoom1, (Strategy * self)) {
  return self->Strategy::replica_group();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan8Strategy5Room2Ev", std::vector<OwnedSlice>,
                    StrategyRoom2, (const Strategy* self)) {
  return self->Strategy::ReplicaSlices();
}
CAPSTAN_FORMER_ROOM("_ZN7capstan8Strategy5Room3Ev", void, StrategyRoom3,
                    (Strategy * self, int64_t step)) {
  self->Strategy::Restored(step);
}

// The rooms that are left, two at a time.
#define CAPSTAN_ROOM(class_name, a) \
  void class_name::Room##a() {}
#define CAPSTAN_ROOMS(class_name, a, b) \
  void class_name::Room##a() {}         \
  void class_name::Room##b() {}
CAPSTAN_ROOM(Strategy, 4)
CAPSTAN_ROOMS(Strategy, 5, 6)
CAPSTAN_ROOMS(Strategy, 7, 8)
CAPSTAN_ROOM(Model, 4)
CAPSTAN_ROOMS(Model, 5, 6)
CAPSTAN_ROOMS(Model, 7, 8)
CAPSTAN_ROOMS(InferenceWeights, 1, 2)
CAPSTAN_ROOMS(TokenModel, 5, 6)
CAPSTAN_ROOMS(TokenModel, 7, 8)
CAPSTAN_ROOMS(TextScores, 1, 2)
CAPSTAN_ROOMS(TextBatch, 1, 2)
CAPSTAN_ROOMS(TextBatching, 1, 2)
CAPSTAN_ROOMS(JoinableCache, 1, 2)
CAPSTAN_ROOMS(KvCache, 1, 2)
CAPSTAN_ROOMS(BatchedCache, 1, 2)
CAPSTAN_ROOMS(Objective, 9, 10)
CAPSTAN_ROOMS(Objective, 11, 12)
CAPSTAN_ROOMS(Optimizer, 1, 2)
CAPSTAN_ROOMS(Optimizer, 3, 4)
CAPSTAN_ROOMS(DatasetReader, 1, 2)
CAPSTAN_ROOMS(DatasetReader, 3, 4)
CAPSTAN_ROOM(Precision, 2)
CAPSTAN_ROOMS(Precision, 3, 4)
CAPSTAN_ROOMS(Collector, 1, 2)
CAPSTAN_ROOMS(Collector, 3, 4)
CAPSTAN_ROOMS(Command, 1, 2)
CAPSTAN_ROOMS(Command, 3, 4)
CAPSTAN_ROOMS(HeldGradients, 1, 2)
CAPSTAN_ROOMS(Tokenizer, 1, 2)
CAPSTAN_ROOMS(Tokenizer, 3, 4)
CAPSTAN_ROOMS(ChatTemplate, 1, 2)
CAPSTAN_ROOMS(ChatTemplate, 3, 4)

}  // namespace capstan
