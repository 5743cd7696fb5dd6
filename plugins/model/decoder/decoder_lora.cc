// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/decoder_lora.h"

#include <algorithm>
#include <array>
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
#include "plugins/model/decoder/decoder_model.h"
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

// The names of all modules by the indices of their parameters; "" for experts
// and their routers, which transformers has in other tensors.
std::vector<std::string> WholeModules(const DecoderLayout& layout) {
  std::vector<std::string> modules;
  for (const ParameterSpec& spec : layout.specs) {
    modules.push_back(spec.name.substr(0, spec.name.rfind('.')));
  }
  for (const DecoderLayout::Layer& layer : layout.layers) {
    if (layer.weight[kRouter] >= 0) modules[layer.weight[kRouter]].clear();
    for (const std::array<int, 3>& expert : layer.experts) {
      for (const int index : expert) modules[index].clear();
    }
  }
  return modules;
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
    const LoraSpec& spec, const std::vector<std::string>& modules_to_save,
    const DecoderConfig& config, const DecoderLayout& layout) {
  CAPSTAN_RETURN_IF_ERROR(CheckNumbers(spec));
  CAPSTAN_RETURN_IF_ERROR(CheckNames(spec, layout));
  std::unique_ptr<DecoderLora> lora(new DecoderLora(spec));
  lora->AddAdapters(layout);
  CAPSTAN_RETURN_IF_ERROR(lora->Save(modules_to_save, config, layout));
  if (!spec.pretrained.empty()) {
    const absl::Status opened = lora->OpenPretrained(layout);
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
    if (!spec_.dora) continue;
    specs_.push_back({MagnitudeName(module), {out}});
    specs_.back().unit = base[i].unit;
  }
}

absl::Status DecoderLora::Save(const std::vector<std::string>& modules,
                               const DecoderConfig& config,
                               const DecoderLayout& layout) {
  saved_.resize(layout.specs.size());
  const std::vector<std::string> known = WholeModules(layout);
  const std::string head = config.head();
  const bool tied = layout.head == kEmbedding;
  for (const std::string& wanted : modules) {
    bool found = false;
    for (size_t i = 0; i < known.size(); ++i) {
      // Any end will do, as in PEFT: "norm" is each layer's norms, too.
      const bool is_head =
          tied && i == kEmbedding && absl::EndsWith(head, wanted);
      if (!is_head && (known[i].empty() || !absl::EndsWith(known[i], wanted))) {
        continue;
      }
      found = true;
      if (place_[i] >= 0) {
        return FieldError(
            "modules_to_save",
            absl::StrCat("'", wanted,
                         "' is trained whole, and target_modules "
                         "gives it an adapter: leave it out of the one or the "
                         "other"));
      }
      saved_[i] = {SavedParameterName(layout.specs[i].name)};
      if (tied && i == kEmbedding) {
        saved_[i].push_back(SavedParameterName(head + ".weight"));
      }
    }
    if (found) continue;
    return FieldError(
        "modules_to_save",
        absl::StrCat("'", wanted, "' is none of this model's modules, such as ",
                     config.names->embedding, " and ", head));
  }
  return absl::OkStatus();
}

bool DecoderLora::SavesAny() const {
  return std::any_of(saved_.begin(), saved_.end(),
                     [](const auto& names) { return !names.empty(); });
}

absl::Status DecoderLora::SavedValue(int index, int64_t begin, int64_t count,
                                     float* out) const {
  return pretrained_->ReadFloats(saved_[index][0], begin, count, out);
}

absl::Status DecoderLora::OpenPretrained(const DecoderLayout& layout) {
  const std::string& folder = spec_.pretrained;
  CAPSTAN_ASSIGN_OR_RETURN(const AdapterSpec saved, ReadAdapterConfig(folder));
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
  if (saved.dora != spec_.dora) {
    return differs("use_dora", saved.dora, spec_.dora);
  }
  std::vector<ParameterSpec> wanted = specs_;
  std::set<std::string> others;
  for (size_t i = 0; i < saved_.size(); ++i) {
    if (saved_[i].empty()) continue;
    wanted.push_back({saved_[i][0], layout.specs[i].shape});
    others.insert(saved_[i].begin() + 1, saved_[i].end());
  }
  if (!others.empty() && !saved.ties) {
    return absl::UnimplementedError(absl::StrCat(
        folder,
        "/adapter_config.json: modules_to_save has the embedding, which is the "
        "model's head, too, and ensure_weight_tying isn't set: embedding and "
        "head that were trained apart are not implemented"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      pretrained_,
      SafetensorsReader::Open(folder + "/adapter_model.safetensors"));
  return CheckTensors(
      wanted, *pretrained_, folder,
      {"the adapter lacks", "which its modules ask for",
       "for this model it must be",
       absl::StrCat("has no place in this model with target_modules ",
                    absl::StrJoin(spec_.target_modules, ", ")),
       ": is it another model's?"},
      /*any_float=*/true, [&](absl::string_view name) {
        return others.count(std::string(name)) > 0 || IsSecondCopy(name);
      });
}

absl::Status DecoderLora::InitialValue(int index, uint64_t seed, int64_t begin,
                                       int64_t count, float* out,
                                       const ReadBase& base) const {
  const ParameterSpec& spec = specs_[index];
  if (pretrained_ != nullptr) {
    return pretrained_->ReadFloats(spec.name, begin, count, out);
  }
  const AdapterName name = *ParseAdapterName(spec.name);
  if (name.is_magnitude) {
    // Behind its A and B.
    const int64_t in = specs_[index - 2].shape[1];
    const int a = static_cast<int>(place_.size()) + index - 2;
    const auto of = std::find(place_.begin(), place_.end(), a);
    std::vector<float> row(in);
    for (int64_t i = 0; i < count; ++i) {
      CAPSTAN_RETURN_IF_ERROR(base(static_cast<int>(of - place_.begin()),
                                   (begin + i) * in, in, row.data()));
      double sum = 0.0;
      for (const float value : row) sum += static_cast<double>(value) * value;
      out[i] = static_cast<float>(std::sqrt(sum));
    }
    return absl::OkStatus();
  }
  if (name.is_b) {
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
                                 const at::Tensor& samples,
                                 std::vector<at::Tensor>* known_norms) const {
  kernels::Adapter adapter;
  if (!Has(index)) return adapter;
  adapter.a = parameters[place_[index]];
  adapter.b = parameters[place_[index] + 1];
  adapter.scale = spec_.scale();
  adapter.dropout = {spec_.dropout, keys_[index], samples};
  if (!spec_.dora) return adapter;
  adapter.magnitude = parameters[place_[index] + 2];
  if (known_norms != nullptr) {
    known_norms->resize(place_.size());
    adapter.known_norms = &(*known_norms)[index];
  }
  return adapter;
}

absl::Status DecoderModel::AddLora(const LoraSpec& spec) {
  if (lora_ != nullptr || !parameters_.empty()) {
    return absl::FailedPreconditionError(
        "an adapter is added once, before the model's parameters are bound");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      lora_, DecoderLora::Create(spec, modules_to_save_, config_, layout_));
  const uint64_t seed = spec.seed;
  absl::StatusOr<std::unique_ptr<PackedMatrices>> packed =
      PackedMatrices::Create(
          spec.quantize, layout_, weights_.get(), file_names_,
          [this, seed](int index, int64_t begin, int64_t count, float* out) {
            return BaseValue(index, seed, begin, count, out);
          });
  absl::Status status = packed.status();
  if (packed.ok()) {
    packed_ = *std::move(packed);
    status = CheckSaved();
  }
  if (!status.ok()) {
    packed_.reset();
    lora_.reset();
    return status;
  }
  for (size_t i = 0; i < specs_.size(); ++i) {
    specs_[i].trainable = lora_->Saves(static_cast<int>(i));
  }
  specs_.insert(specs_.end(), lora_->specs().begin(), lora_->specs().end());
  return absl::OkStatus();
}

absl::Status DecoderModel::CheckSaved() const {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const int index = static_cast<int>(i);
    if (!lora_->Saves(index) || !Packed(index)) continue;
    return FieldError("modules_to_save",
                      absl::StrCat("'", specs_[i].name,
                                   "' is kept quantised, and can't be trained "
                                   "whole: give it an adapter instead"));
  }
  if (config_.new_scores && !lora_->Saves(layout_.head)) {
    return FieldError("modules_to_save",
                      absl::StrCat("must name ", config_.head(),
                                   ": the model's head is new, and an adapter "
                                   "leaves it as it is"));
  }
  if (new_rows_ == nullptr ||
      (lora_->Saves(kEmbedding) && lora_->Saves(layout_.head))) {
    return absl::OkStatus();
  }
  return FieldError(
      "modules_to_save",
      absl::StrCat("must name ", config_.names->embedding, " and ",
                   config_.head(),
                   ": vocab_size gives them rows that the base doesn't have"));
}

std::vector<std::string> DecoderModel::SavedNames(int index) const {
  if (lora_ == nullptr || static_cast<size_t>(index) >= layout_.specs.size()) {
    return {};
  }
  return lora_->SavedNames(index);
}

}  // namespace capstan::decoder
