// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/lora.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPrefix[] = "base_model.model.";
constexpr char kSuffixA[] = ".lora_A.weight";
constexpr char kSuffixB[] = ".lora_B.weight";
constexpr char kSuffixMagnitude[] = ".lora_magnitude_vector";
constexpr char kAllLinear[] = "all-linear";

// Keys that, if set, change what an adapter computes.
constexpr const char* kNotImplemented[] = {"alora_invocation_tokens",
                                           "alpha_pattern",
                                           "exclude_modules",
                                           "fan_in_fan_out",
                                           "layer_replication",
                                           "layers_pattern",
                                           "layers_to_transform",
                                           "lora_bias",
                                           "rank_pattern",
                                           "target_parameters",
                                           "trainable_token_indices",
                                           "use_bdlora",
                                           "use_qalora"};

bool IsSet(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_object() || value.is_array()) return !value.empty();
  return true;
}

// Reads one adapter_config.json.
class ConfigReader : private JsonKeys {
 public:
  using JsonKeys::JsonKeys;

  absl::StatusOr<AdapterSpec> Read() {
    RefuseOthers();
    AdapterSpec spec;
    if (const Json* r = Find("r")) {
      spec.rank = JsonInteger(*r).value_or(0);
      if (spec.rank < 1) Fail("r", "must be an integer greater than 0", *r);
    }
    spec.alpha = Double("lora_alpha", spec.alpha);
    spec.dropout = Double("lora_dropout", spec.dropout);
    if (!(spec.dropout >= 0.0 && spec.dropout < 1.0)) {
      Fail("lora_dropout", "must be at least 0 and below 1",
           *Find("lora_dropout"));
    }
    spec.rslora = Bool("use_rslora", spec.rslora);
    spec.dora = Bool("use_dora", spec.dora);
    ReadModules(&spec.target_modules);
    const Json* saved = Find("modules_to_save");
    if (saved != nullptr && !saved->empty()) {
      ReadNames("modules_to_save", *saved, &spec.modules_to_save);
    }
    const Json* const task = Find("task_type");
    if (task != nullptr && *task == "SEQ_CLS") {
      // PEFT adds both of the names that such heads have.
      std::vector<std::string>& names = spec.modules_to_save;
      names.erase(std::remove(names.begin(), names.end(), "classifier"),
                  names.end());
    }
    spec.ties = Bool("ensure_weight_tying", false);
    if (!status().ok()) return status();
    return spec;
  }

 private:
  void RefuseOthers() {
    const Json* type = Find("peft_type");
    if (type == nullptr || *type != "LORA") {
      Fail("peft_type", "must be \"LORA\"", type == nullptr ? Json() : *type);
    }
    for (const char* key : kNotImplemented) {
      const Json* value = Find(key);
      if (value != nullptr && IsSet(*value)) {
        Fail(key, "is not implemented: it must be absent, null or empty",
             *value);
      }
    }
    const Json* bias = Find("bias");
    if (bias != nullptr && *bias != "none") {
      Fail("bias", "must be \"none\"", *bias);
    }
    // Others (PiSSA, OLoRA, LoftQ ..) change the base model's weights.
    const Json* init = Find("init_lora_weights");
    if (init != nullptr && !init->is_boolean() && *init != "gaussian" &&
        *init != "orthogonal" && *init != "eva") {
      Fail("init_lora_weights",
           "must leave the base model's weights as they are (true, false, "
           "\"gaussian\", \"orthogonal\" or \"eva\")",
           *init);
    }
  }

  void ReadNames(const char* key, const Json& names,
                 std::vector<std::string>* modules) {
    if (!names.is_array()) return Fail(key, "must be a list of names", names);
    for (const Json& name : names) {
      if (!name.is_string() || name.get<std::string>().empty()) {
        return Fail(key, "must hold names", names);
      }
      modules->push_back(name.get<std::string>());
    }
  }

  void ReadModules(std::vector<std::string>* modules) {
    const Json* value = Find("target_modules");
    if (value != nullptr && *value == kAllLinear) {
      *modules = {kAllLinear};
      return;
    }
    if (value != nullptr && value->is_array() && !value->empty()) {
      return ReadNames("target_modules", *value, modules);
    }
    Fail("target_modules",
         "must be a list of module names or \"all-linear\" (regular "
         "expressions are not implemented)",
         value == nullptr ? Json() : *value);
  }
};

// Whole numbers without ".0", as PEFT writes them.
Json Plain(double value) {
  const double whole = std::nearbyint(value);
  if (whole == value && std::fabs(value) < 1e15) {
    return static_cast<int64_t>(whole);
  }
  return value;
}

// What capstan.json says the base was quantised to.
Quantize ReadQuantize(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/capstan.json");
  if (!text.ok()) return Quantize::kFolders;
  const Json json = ParseJson<Json>(*text);
  for (const Quantize quantize :
       {Quantize::kNf4, Quantize::kNf4Double, Quantize::kFp8}) {
    if (json.is_object() && json.contains(kQuantizeKey) &&
        json[kQuantizeKey] == QuantizeName(quantize)) {
      return quantize;
    }
  }
  return Quantize::kFolders;
}

}  // namespace

std::string AdapterConfigJson(const AdapterSpec& spec,
                              const std::string& base_model) {
  const Json none = nullptr;
  Json json;
  json["peft_type"] = "LORA";
  const std::vector<std::string>& saved = spec.modules_to_save;
  const bool scores = std::count(saved.begin(), saved.end(), "score") > 0;
  json["task_type"] = scores ? "SEQ_CLS" : "CAUSAL_LM";
  json["base_model_name_or_path"] =
      base_model.empty() ? none : Json(base_model);
  json["revision"] = none;
  json["inference_mode"] = true;
  json["r"] = spec.rank;
  json["lora_alpha"] = Plain(spec.alpha);
  json["lora_dropout"] = spec.dropout;
  json["use_rslora"] = spec.rslora;
  json["use_dora"] = spec.dora;
  json["bias"] = "none";
  json["lora_bias"] = false;
  json["fan_in_fan_out"] = false;
  json["init_lora_weights"] = true;
  const bool all =
      spec.target_modules.size() == 1 && spec.target_modules[0] == kAllLinear;
  json["target_modules"] = all ? Json(kAllLinear) : Json(spec.target_modules);
  json["modules_to_save"] =
      spec.modules_to_save.empty() ? none : Json(spec.modules_to_save);
  // Versions of PEFT that lack it warn of a key that they don't know.
  if (spec.ties) json["ensure_weight_tying"] = true;
  json["layers_to_transform"] = none;
  json["layers_pattern"] = none;
  json["layer_replication"] = none;
  json["rank_pattern"] = Json::object();
  json["alpha_pattern"] = Json::object();
  return JsonText(json, 2) + "\n";
}

absl::StatusOr<AdapterSpec> ReadAdapterConfig(const std::string& folder) {
  const std::string path = folder + "/adapter_config.json";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(path, text));
  CAPSTAN_ASSIGN_OR_RETURN(AdapterSpec spec, ConfigReader(path, json).Read());
  spec.pretrained = folder;
  spec.quantize = ReadQuantize(folder);
  return spec;
}

const char* QuantizeName(Quantize quantize) {
  switch (quantize) {
    case Quantize::kNf4:
      return "nf4";
    case Quantize::kNf4Double:
      return "nf4_double";
    case Quantize::kFp8:
      return "fp8";
    default:
      return nullptr;
  }
}

bool IsAdapterParameter(absl::string_view name) {
  return ParseAdapterName(name).has_value();
}

absl::optional<AdapterName> ParseAdapterName(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, kPrefix)) return absl::nullopt;
  AdapterName parsed;
  parsed.is_b = absl::ConsumeSuffix(&name, kSuffixB);
  if (!parsed.is_b) {
    parsed.is_magnitude = absl::ConsumeSuffix(&name, kSuffixMagnitude);
    if (!parsed.is_magnitude && !absl::ConsumeSuffix(&name, kSuffixA)) {
      return absl::nullopt;
    }
  }
  if (name.empty()) return absl::nullopt;
  parsed.module = std::string(name);
  return parsed;
}

std::string AdapterParameterName(absl::string_view module, bool is_b) {
  return absl::StrCat(kPrefix, module, is_b ? kSuffixB : kSuffixA);
}

std::string MagnitudeName(absl::string_view module) {
  return absl::StrCat(kPrefix, module, kSuffixMagnitude);
}

bool IsSecondCopy(absl::string_view name) {
  return absl::EndsWith(name, ".modules_to_save.weight") ||
         absl::EndsWith(name, ".original_module.weight");
}

std::string SavedParameterName(absl::string_view name) {
  return absl::StrCat(kPrefix, name);
}

}  // namespace capstan
