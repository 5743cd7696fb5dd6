// SPDX-License-Identifier: Apache-2.0
//
// Key functions of the interfaces: they put one copy of each vtable and
// type_info into the process, in the core.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "base/gradient_sink.h"
#include "base/work_recorder.h"
#include "plugins/sdk/adapter_switch.h"
#include "plugins/sdk/batch_sampler.h"
#include "plugins/sdk/batched_cache.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/end_tokens.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/host_targets.h"
#include "plugins/sdk/inference_weights.h"
#include "plugins/sdk/kept_context.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/next_logits.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/packed_parameters.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/row_losses.h"
#include "plugins/sdk/strategy.h"

namespace capstan {

AdapterSwitch::~AdapterSwitch() = default;
BatchSampler::~BatchSampler() = default;
BatchedCache::~BatchedCache() = default;
void BatchedCache::ExpectLengths(const std::vector<int64_t>&) {}
ChatTemplate::~ChatTemplate() = default;
Collector::~Collector() = default;
Command::~Command() = default;
CommandHost::~CommandHost() = default;
DatasetReader::~DatasetReader() = default;
EndTokens::~EndTokens() = default;
EpochDraws::~EpochDraws() = default;

bool TakesHostTargets(const TokenModel& model) {
  return !WorkIsRepeated() &&
         dynamic_cast<const HostTargets*>(&model) != nullptr;
}

bool DrawsAnew(const DatasetReader& reader) {
  const auto* const draws = dynamic_cast<const EpochDraws*>(&reader);
  return draws != nullptr && draws->draws_anew();
}

Flag::~Flag() = default;
Flags::~Flags() = default;
HeldGradients::~HeldGradients() = default;
HostTargets::~HostTargets() = default;
InferenceWeights::~InferenceWeights() = default;
KeptContext::~KeptContext() = default;
KvCache::~KvCache() = default;
LengthDependentCache::~LengthDependentCache() = default;
Model::~Model() = default;
NextLogits::~NextLogits() = default;
Objective::~Objective() = default;
Optimizer::~Optimizer() = default;
PackedParameters::~PackedParameters() = default;
ParameterRoles::~ParameterRoles() = default;
Precision::~Precision() = default;
ProcessGroup::~ProcessGroup() = default;
RowLosses::~RowLosses() = default;
Strategy::~Strategy() = default;
Tokenizer::~Tokenizer() = default;
TokenModel::~TokenModel() = default;
UnitRunner::~UnitRunner() = default;
Work::~Work() = default;

at::Tensor PlainRunner::Run(int, const at::Tensor& input, const Body& body) {
  return body(input);
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

int64_t PackedBytesOf(const Model& model, int index) {
  const auto* const packed = dynamic_cast<const PackedParameters*>(&model);
  return packed == nullptr ? 0 : packed->PackedBytes(index);
}

ParameterRole RoleOf(const Model& model, int parameter) {
  if (const auto* roles = dynamic_cast<const ParameterRoles*>(&model)) {
    return roles->role(parameter);
  }
  const ParameterSpec& spec = model.parameters()[parameter];
  if (spec.shape.size() > 1 && !spec.read_in_backward) {
    return ParameterRole::kEmbedding;
  }
  if (spec.shape.size() == 2) {
    const bool last = spec.unit + 1 == static_cast<int>(model.units().size());
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

}  // namespace capstan
