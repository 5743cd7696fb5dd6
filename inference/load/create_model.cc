// SPDX-License-Identifier: Apache-2.0
#include "inference/load/create_model.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "host/config/create_slot.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {
namespace {

using google::protobuf::Any;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The adapter's spec, with PEFT's defaults or from the pretrained adapter.
absl::StatusOr<AdapterSpec> SpecOf(const Lora& lora) {
  AdapterSpec spec;
  spec.target_modules = {"all-linear"};
  if (!lora.pretrained().empty()) {
    if (lora.rank() != 0 || lora.has_alpha() || lora.rslora() || lora.dora() ||
        lora.target_modules_size() > 0 || lora.modules_to_save_size() > 0) {
      return FieldError("pretrained",
                        "rank, alpha, rslora, dora, target_modules and "
                        "modules_to_save are that adapter's own: leave them "
                        "out");
    }
    absl::StatusOr<AdapterSpec> read = ReadAdapterConfig(lora.pretrained());
    if (!read.ok()) {
      return FieldError("pretrained", read.status().message());
    }
    spec = *std::move(read);
  }
  if (lora.rank() < 0) {
    return FieldError(
        "rank", absl::StrCat("must be greater than 0, or 0 for the default (",
                             spec.rank, "), is ", lora.rank()));
  }
  if (lora.rank() > 0) spec.rank = lora.rank();
  if (lora.has_alpha()) spec.alpha = lora.alpha();
  if (!(spec.alpha > 0)) {
    return FieldError("alpha",
                      absl::StrCat("must be greater than 0, is ", spec.alpha));
  }
  if (!(lora.dropout() >= 0 && lora.dropout() < 1)) {
    return FieldError("dropout",
                      absl::StrCat("must be in [0, 1), is ", lora.dropout()));
  }
  spec.dropout = lora.dropout();
  if (lora.rslora()) spec.rslora = true;
  if (lora.dora()) spec.dora = true;
  if (lora.target_modules_size() > 0) {
    spec.target_modules.assign(lora.target_modules().begin(),
                               lora.target_modules().end());
  }
  if (lora.modules_to_save_size() > 0) {
    spec.modules_to_save.assign(lora.modules_to_save().begin(),
                                lora.modules_to_save().end());
  }
  switch (lora.quantize()) {
    case Lora::NONE:
      break;
    case Lora::NF4:
      spec.quantize = Quantize::kNf4;
      break;
    case Lora::NF4_DOUBLE:
      spec.quantize = Quantize::kNf4Double;
      break;
    case Lora::FP8:
      spec.quantize = Quantize::kFp8;
      break;
    default:
      return FieldError("quantize",
                        absl::StrCat("no such value: ", lora.quantize()));
  }
  return spec;
}

absl::StatusOr<absl::optional<AdapterSpec>> AdapterOf(
    const LoadedConfig& loaded) {
  if (!loaded.config.has_adapter()) return absl::nullopt;
  const Adapter& adapter = loaded.config.adapter();
  if (!adapter.has_lora()) {
    return loaded.Locate(absl::InvalidArgumentError(
                             "no kind is set: write lora {}, or leave it out"),
                         "adapter");
  }
  absl::StatusOr<AdapterSpec> spec = SpecOf(adapter.lora());
  if (!spec.ok()) {
    return loaded.Locate(WithHubHint(spec.status(), loaded, "adapter.lora"),
                         "adapter.lora");
  }
  spec->seed = loaded.config.train().seed();
  return *std::move(spec);
}

// A model's config with another value of a field that models may have; nullopt
// if this one's has no such field.
template <typename T>
absl::optional<Any> WithField(const Any& model, const char* name,
                              FieldDescriptor::Type type,
                              void (google::protobuf::Reflection::*set)(
                                  Message*, const FieldDescriptor*, T) const,
                              T value) {
  const absl::StatusOr<std::unique_ptr<Message>> config = Unpack(model);
  if (!config.ok()) return absl::nullopt;
  const FieldDescriptor* const field = SingleField(**config, name, type);
  if (field == nullptr) return absl::nullopt;
  ((*config)->GetReflection()->*set)(config->get(), field, value);
  Any changed = model;
  changed.set_value((*config)->SerializeAsString());
  return changed;
}

// The config of the model that an adapter is for, if the adapter has a head of
// scores (plugins/sdk/token_model.h) and the base has none; else nullopt.
absl::optional<Any> WithScores(const Any& config, const AdapterSpec& spec,
                               Model& model) {
  const std::vector<std::string>& saved = spec.modules_to_save;
  TokenModel* const tokens = model.token_model();
  if (spec.pretrained.empty() || tokens == nullptr ||
      tokens->text_scores() != nullptr ||
      std::find(saved.begin(), saved.end(), "score") == saved.end()) {
    return absl::nullopt;
  }
  return WithField(config, "score_head", FieldDescriptor::TYPE_BOOL,
                   &google::protobuf::Reflection::SetBool, true);
}

// The rows of the embedding in the adapter that `spec` continues, if these are
// more than the model's: tokens were added for its run. Else 0.
absl::StatusOr<int64_t> RowsOf(const AdapterSpec& spec, Model& model) {
  const TokenModel* const tokens = model.token_model();
  if (spec.pretrained.empty() || spec.modules_to_save.empty() ||
      tokens == nullptr) {
    return 0;
  }
  const auto adapter =
      SafetensorsReader::Open(spec.pretrained + "/adapter_model.safetensors");
  if (!adapter.ok()) {
    return FieldError("pretrained", adapter.status().message());
  }
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (size_t i = 0; i < specs.size(); ++i) {
    if (model.role(static_cast<int>(i)) != ParameterRole::kEmbedding) {
      continue;
    }
    const auto found =
        (*adapter)->tensors().find(SavedParameterName(specs[i].name));
    if (found == (*adapter)->tensors().end()) continue;
    const std::vector<int64_t>& shape = found->second.shape;
    if (shape.size() == 2 && shape[0] > tokens->vocab_size()) return shape[0];
  }
  return 0;
}

// Adds the adapter, and sets what the model decides of it.
absl::Status AddAdapter(Model& model, AdapterSpec* spec) {
  if (!spec->modules_to_save.empty()) {
    CAPSTAN_RETURN_IF_ERROR(model.SetModulesToSave(spec->modules_to_save));
  }
  CAPSTAN_RETURN_IF_ERROR(model.AddLora(*spec));
  spec->ties = false;
  bool packs = false, magnitudes = false;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const int index = static_cast<int>(i);
    spec->ties |= model.SavedNames(index).size() > 1;
    packs |= model.PackedBytes(index) > 0;
    const auto name = ParseAdapterName(model.parameters()[i].name);
    magnitudes |= name.has_value() && name->is_magnitude;
  }
  // One that was built before LoraSpec had the field.
  if (spec->dora && !magnitudes) {
    return FieldError("dora", "this model's adapters have none: leave it out");
  }
  if (spec->quantize != Quantize::kFolders && !packs) {
    return FieldError(
        "quantize",
        "this model can't keep its weights quantised: leave it out");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> CreateModel(
    const LoadedConfig& loaded, PluginHost& host,
    absl::optional<AdapterSpec>* lora) {
  CAPSTAN_ASSIGN_OR_RETURN(absl::optional<AdapterSpec> spec, AdapterOf(loaded));
  const auto make = [&](const Any& config) {
    return CreateSlot<Model>(loaded, "model", config, host);
  };
  Any config = loaded.config.model();
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, make(config));
  if (spec.has_value()) {
    const absl::optional<Any> scores = WithScores(config, *spec, *model);
    if (scores.has_value()) {
      config = *scores;
      CAPSTAN_ASSIGN_OR_RETURN(model, make(config));
    }
    const absl::StatusOr<int64_t> rows = RowsOf(*spec, *model);
    CAPSTAN_RETURN_IF_ERROR(loaded.Locate(rows.status(), "adapter.lora"));
    if (*rows > 0) {
      const absl::StatusOr<Any> grown = WithVocabulary(config, *rows);
      CAPSTAN_RETURN_IF_ERROR(loaded.Locate(grown.status(), "model"));
      CAPSTAN_ASSIGN_OR_RETURN(model, make(*grown));
    }
    CAPSTAN_RETURN_IF_ERROR(
        loaded.Locate(AddAdapter(*model, &*spec), "adapter.lora"));
  }
  if (lora != nullptr) *lora = spec;
  return model;
}

absl::StatusOr<Any> WithVocabulary(const Any& model, int64_t rows) {
  const absl::optional<Any> grown =
      WithField(model, "vocab_size", FieldDescriptor::TYPE_INT64,
                &google::protobuf::Reflection::SetInt64, rows);
  if (grown.has_value()) return *grown;
  return absl::InvalidArgumentError(
      absl::StrCat("its vocabulary can't grow to the tokenizer's ", rows,
                   " tokens: ", TypeOf(model), " has no vocab_size"));
}

}  // namespace capstan
