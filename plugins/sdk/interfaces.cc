// SPDX-License-Identifier: Apache-2.0
//
// Key functions of the interfaces: they put one copy of each vtable and
// type_info into the process, in the core.
#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "kernels/context/work_recorder.h"
#include "plugins/sdk/batched_cache.h"
#include "plugins/sdk/beam_searcher.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/collector.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/inference_weights.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/next_logits.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/part.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/row_losses.h"
#include "plugins/sdk/strategy.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

BatchedCache::~BatchedCache() = default;
void BatchedCache::ExpectLengths(const std::vector<int64_t>&) {}
BeamSearcher::~BeamSearcher() = default;
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
KvCache::~KvCache() = default;
Model::~Model() = default;
NextLogits::~NextLogits() = default;
Objective::~Objective() = default;
Optimizer::~Optimizer() = default;
Part::~Part() = default;
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

}  // namespace capstan
