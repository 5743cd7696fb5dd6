// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/decoder_lora.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/random.h"
#include "base/status.h"
#include "plugins/model/common/parameters.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/lib/lora.h"

namespace capstan::decoder {
namespace {

constexpr char kAllLinear[] = "all-linear";

// The names of linear layers by the index of their weights; "" for parameters
// without adapters: norms, biases, experts, the embedding and the head.
std::vector<std::string> Modules(const DecoderLayout& layout) {
  std::vector<std::string> modules(layout.specs.size());
  for (const DecoderLayout::Layer& layer : layout.layers) {
    for (const LayerModule module : kBlockModules) {
      const int index = layer.weight[module];
      if (index < 0) continue;
      absl::string_view name = layout.specs[index].name;
      absl::ConsumeSuffix(&name, ".weight");
      modules[index] = std::string(name);
    }
  }
  return modules;
}

// Whether `target` is the module's name or a suffix of it after a dot.
bool Names(absl::string_view target, absl::string_view module) {
  return target == module ||
         (absl::ConsumeSuffix(&module, target) && absl::EndsWith(module, "."));
}

absl::Status CheckNumbers(const LoraSpec& spec) {
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      spec.rank >= 1 && spec.rank <= std::numeric_limits<int32_t>::max(),
      "rank", "greater than 0", spec.rank));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(spec.alpha > 0.0 && std::isfinite(spec.alpha), "alpha",
                 "greater than 0", spec.alpha));
  return CheckField(spec.dropout >= 0.0 && spec.dropout < 1.0, "dropout",
                    "at least 0 and below 1", spec.dropout);
}

// Checks that each name in target_modules is a module of the model.
absl::Status CheckNames(const LoraSpec& spec, const DecoderLayout& layout) {
  std::set<std::string> last_parts, modules;
  for (const std::string& module : Modules(layout)) {
    if (module.empty()) continue;
    modules.insert(module);
    last_parts.insert(module.substr(module.rfind('.') + 1));
  }
  const std::string known =
      absl::StrCat(absl::StrJoin(last_parts, ", "), ", or ", kAllLinear);
  if (spec.target_modules.empty()) {
    return FieldError(
        "target_modules",
        absl::StrCat("is empty: name the modules that get an adapter (", known,
                     ")"));
  }
  for (const std::string& target : spec.target_modules) {
    if (target == kAllLinear ||
        std::any_of(modules.begin(), modules.end(), [&](const auto& module) {
          return Names(target, module);
        })) {
      continue;
    }
    return FieldError("target_modules",
                      absl::StrCat("'", target,
                                   "' is none of this model's modules, which "
                                   "are ",
                                   known));
  }
  return absl::OkStatus();
}

bool IsTarget(const LoraSpec& spec, const std::string& module) {
  return !module.empty() &&
         std::any_of(spec.target_modules.begin(), spec.target_modules.end(),
                     [&](const std::string& target) {
                       return target == kAllLinear || Names(target, module);
                     });
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderLora>> DecoderLora::Create(
    const LoraSpec& spec, const DecoderLayout& layout) {
  CAPSTAN_RETURN_IF_ERROR(CheckNumbers(spec));
  CAPSTAN_RETURN_IF_ERROR(CheckNames(spec, layout));
  std::unique_ptr<DecoderLora> lora(new DecoderLora(spec));
  lora->AddAdapters(layout);
  if (!spec.pretrained.empty()) {
    const absl::Status opened = lora->OpenPretrained();
    if (!opened.ok()) return FieldError("pretrained", opened.message());
  }
  return lora;
}

void DecoderLora::AddAdapters(const DecoderLayout& layout) {
  const std::vector<ParameterSpec>& base = layout.specs;
  const std::vector<std::string> modules = Modules(layout);
  place_.assign(base.size(), -1);
  keys_.assign(base.size(), 0);
  for (size_t i = 0; i < base.size(); ++i) {
    const std::string& module = modules[i];
    if (!IsTarget(spec_, module)) continue;
    place_[i] = static_cast<int>(base.size() + specs_.size());
    keys_[i] = RandomKey(spec_.seed, absl::StrCat("lora_dropout.", module));
    const int64_t out = base[i].shape[0], in = base[i].shape[1];
    for (const bool is_b : {false, true}) {
      ParameterSpec adapter;
      adapter.name = AdapterParameterName(module, is_b);
      adapter.shape = is_b ? std::vector<int64_t>{out, spec_.rank}
                           : std::vector<int64_t>{spec_.rank, in};
      adapter.unit = base[i].unit;
      specs_.push_back(std::move(adapter));
    }
  }
}

absl::Status DecoderLora::OpenPretrained() {
  const std::string& folder = spec_.pretrained;
  CAPSTAN_ASSIGN_OR_RETURN(const LoraSpec saved, ReadAdapterConfig(folder));
  const auto differs = [&](const char* key, const auto& is,
                           const auto& wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/adapter_config.json: ", key, " is ", is,
                     ", this run's is ", wanted));
  };
  if (saved.rank != spec_.rank) return differs("r", saved.rank, spec_.rank);
  if (saved.alpha != spec_.alpha) {
    return differs("lora_alpha", saved.alpha, spec_.alpha);
  }
  if (saved.rslora != spec_.rslora) {
    return differs("use_rslora", saved.rslora, spec_.rslora);
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      pretrained_,
      SafetensorsReader::Open(folder + "/adapter_model.safetensors"));
  return CheckTensors(
      specs_, *pretrained_, folder,
      {"the adapter lacks", "which target_modules asks for",
       "for this model it must be",
       absl::StrCat("has no place in this model with target_modules ",
                    absl::StrJoin(spec_.target_modules, ", ")),
       ": is it another model's?"},
      /*any_float=*/true);
}

absl::Status DecoderLora::InitialValue(int index, uint64_t seed, int64_t begin,
                                       int64_t count, float* out) const {
  const ParameterSpec& spec = specs_[index];
  if (pretrained_ != nullptr) {
    return pretrained_->ReadFloats(spec.name, begin, count, out);
  }
  if (ParseAdapterName(spec.name)->is_b) {
    std::fill(out, out + count, 0.0f);
    return absl::OkStatus();
  }
  FillUniform(RandomKey(seed, spec.name),
              1.0 / std::sqrt(static_cast<double>(spec.shape[1])), begin, count,
              out);
  return absl::OkStatus();
}

kernels::Adapter DecoderLora::At(int index,
                                 const std::vector<at::Tensor>& parameters,
                                 const at::Tensor& samples) const {
  kernels::Adapter adapter;
  if (!Has(index)) return adapter;
  adapter.a = parameters[place_[index]];
  adapter.b = parameters[place_[index] + 1];
  adapter.scale = spec_.scale();
  adapter.dropout = {spec_.dropout, keys_[index], samples};
  return adapter;
}

}  // namespace capstan::decoder
