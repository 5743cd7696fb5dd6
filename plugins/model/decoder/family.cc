// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/family.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan::decoder {
namespace {

constexpr char kClassifier[] = "ForSequenceClassification";

std::map<std::string, const Family*>& Registry() {
  static auto& registry = *new std::map<std::string, const Family*>();
  return registry;
}

absl::StatusOr<const Family*> FamilyOf(const std::string& path,
                                       const Json& json) {
  const auto type = json.find("model_type");
  const std::string known = absl::StrJoin(
      Families(), ", ", [](std::string* out, const Family* family) {
        absl::StrAppend(out, "\"", family->model_type, "\"");
      });
  if (type == json.end() || !type->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": model_type must be one of ", known, ", is ",
                     type == json.end() ? "missing" : type->dump()));
  }
  const auto found = Registry().find(type->get<std::string>());
  if (found != Registry().end()) return found->second;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": model_type ", type->dump(),
                   " is not implemented; known are ", known));
}

// Notes the ids of eos_token_id, one or a list, that the vocabulary has. False
// if there is no such key.
bool AddEndTokens(const Json& json, DecoderConfig* config) {
  const auto ids = json.find("eos_token_id");
  if (ids == json.end() || ids->is_null()) return false;
  for (const Json& one : ids->is_array() ? *ids : Json::array({*ids})) {
    const absl::optional<int64_t> id = JsonInteger(one);
    if (!id.has_value() || *id < 0 || *id >= config->vocab_size) continue;
    if (!config->eos_token_id.has_value()) config->eos_token_id = id;
    std::vector<int64_t>& others = config->other_eos_token_ids;
    if (id != config->eos_token_id &&
        std::find(others.begin(), others.end(), *id) == others.end()) {
      others.push_back(*id);
    }
  }
  return true;
}

// Transformers' sequence classification: of one label it is a score.
void ReadHead(ConfigKeys& keys, DecoderConfig* config) {
  const Json* const classes = keys.Find("architectures");
  if (classes == nullptr || !classes->is_array() || classes->empty() ||
      !(*classes)[0].is_string() ||
      !absl::EndsWith((*classes)[0].get<std::string>(), kClassifier)) {
    return;
  }
  const Json* const labels = keys.Find("id2label");
  // Without either, transformers has two.
  const auto named =
      labels == nullptr ? int64_t{2} : static_cast<int64_t>(labels->size());
  const int64_t count = keys.Int("num_labels", named);
  if (count != 1) {
    keys.Fail("id2label",
              absl::StrCat("has ", count,
                           " labels: of sequence classification "
                           "only the head with one, a score, is implemented"));
  }
  config->scores = true;
  config->tie_word_embeddings = false;
}

// `text` is what `path` holds; with a null `family`, `read` reads it.
absl::StatusOr<DecoderConfig> ReadText(const std::string& path,
                                       std::string text, const Family* family,
                                       ReadKeys read) {
  CAPSTAN_ASSIGN_OR_RETURN(Json json, ParseObject(path, text));
  if (read == nullptr) {
    CAPSTAN_ASSIGN_OR_RETURN(family, FamilyOf(path, json));
    read = family->read;
  }
  if (family != nullptr && family->text_part != nullptr) {
    json = family->text_part(json);
    text = json.dump();
  }
  ConfigKeys keys(path, json);
  DecoderConfig config;
  config.family = family;
  read(keys, &config);
  if (family != nullptr) ReadHead(keys, &config);
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  CAPSTAN_RETURN_IF_ERROR(keys.FailIf(FinishSizes(&config)));
  config.source_config = std::move(text);
  const std::string beside =
      path.substr(0, path.rfind('/') + 1) + "generation_config.json";
  absl::StatusOr<std::string> generation = ReadWholeFile(beside);
  if (generation.ok()) {
    CAPSTAN_ASSIGN_OR_RETURN(const Json its, ParseObject(beside, *generation));
    config.source_generation_config = *std::move(generation);
    if (AddEndTokens(its, &config)) return config;
  }
  // As in transformers they are config.json's only if the other has none.
  AddEndTokens(json, &config);
  return config;
}

}  // namespace

std::string Architecture(const DecoderConfig& config) {
  std::string architecture = config.family->architecture;
  const size_t use = architecture.find("For");
  if (config.scores) architecture.replace(use, std::string::npos, kClassifier);
  return architecture;
}

RegisterFamily::RegisterFamily(const Family& family) {
  Registry()[family.model_type] = &family;
}

std::vector<const Family*> Families() {
  std::vector<const Family*> families;
  for (const auto& [type, family] : Registry()) families.push_back(family);
  return families;
}

absl::StatusOr<DecoderConfig> ReadConfigFile(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path));
  return ReadText(path, std::move(text), nullptr, nullptr);
}

absl::StatusOr<DecoderConfig> ReadFolder(const std::string& folder) {
  return ReadFolder(folder, nullptr);
}

namespace {

// What to name in the place of a folder that a run has written but that is no
// model's; "" for any other.
std::string FolderHint(const std::string& folder) {
  namespace fs = std::filesystem;
  const bool checkpoint = IsRegularFile(folder + "/manifest.json");
  // RUN/checkpoints/step-00000500
  fs::path run = checkpoint ? fs::path(folder) / "../.." : fs::path(folder);
  // runs/NAME has the newest run's name in a file.
  const absl::StatusOr<std::string> latest =
      ReadWholeFile((run / "latest").string());
  if (latest.ok()) run /= std::string(absl::StripAsciiWhitespace(*latest));
  const fs::path model = (run / "final").lexically_normal();
  if (IsRegularFile((model / "config.json").string())) {
    return absl::StrCat(": the model of the run is in ", model.string());
  }
  if (!checkpoint && !IsRegularFile(folder + "/config.pbtxt")) return "";
  return ": a run writes its model into final/ when it has ended; "
         "`train { resume: AUTO }` goes on with it";
}

}  // namespace

absl::StatusOr<DecoderConfig> ReadFolder(const std::string& folder,
                                         ReadKeys read) {
  const std::string path = folder + "/config.json";
  absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (!text.ok() && IsRegularFile(folder)) {
    // Says what the file is.
    CAPSTAN_RETURN_IF_ERROR(SafetensorsReader::Open(folder).status());
  }
  if (!text.ok()) {
    return WithMessage(text.status(), absl::StrCat(text.status().message(),
                                                   FolderHint(folder)));
  }
  return ReadText(path, *std::move(text), nullptr, read);
}

Json SourceKeys(const DecoderConfig& config) {
  return config.source_config.empty() ? Json::object()
                                      : ParseJson<Json>(config.source_config);
}

namespace {

void AddSpellings(const Rope& rope, Json* json) {
  Json given = Json::object();
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const auto it = json->find(key);
    if (it != json->end() && it->is_object()) given = *it;
  }
  if (!given.contains("rope_type")) {
    given["rope_type"] = given.value("type", Json("default"));
  }
  const auto add = [&](const char* key, const Json& value) {
    Json& there = (*json)[key];
    if (there.is_null()) there = value;
  };
  add("rope_theta", rope.theta);
  if (rope.share != 1.0) add("partial_rotary_factor", rope.share);
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    given.erase(key);
  }
  if (rope.kind != RopeKind::kDefault) add("rope_scaling", given);
  given["rope_theta"] = rope.theta;
  if (rope.share != 1.0) given["partial_rotary_factor"] = rope.share;
  add("rope_parameters", given);
}

// Of layers with a window, which have a rope of their own (Gemma 3).
void AddSpellingsByLayer(const Rope& whole, const Rope& window, Json* json) {
  const auto add = [&](const char* key, const Json& value) {
    Json& there = (*json)[key];
    if (there.is_null()) there = value;
  };
  add("rope_theta", whole.theta);
  add("rope_local_base_freq", window.theta);
  Json given = Json::object();
  const auto parameters = json->find("rope_parameters");
  if (parameters != json->end() && parameters->is_object()) {
    given = parameters->value("full_attention", Json::object());
  }
  const auto scaling = json->find("rope_scaling");
  if (scaling != json->end() && scaling->is_object()) given = *scaling;
  given["rope_type"] =
      given.value("rope_type", given.value("type", Json("default")));
  given.erase("rope_theta");
  if (whole.kind != RopeKind::kDefault) add("rope_scaling", given);
  given["rope_theta"] = whole.theta;
  if (window.kind != RopeKind::kDefault) return;  // as it is: 5's alone
  add("rope_parameters",
      {{"full_attention", given},
       {"sliding_attention",
        {{"rope_type", "default"}, {"rope_theta", window.theta}}}});
}

}  // namespace

void AddRopeSpellings(const std::vector<Rope>& ropes, Json* json) {
  if (ropes.size() == 1) AddSpellings(ropes[0], json);
  if (ropes.size() == 2) AddSpellingsByLayer(ropes[0], ropes[1], json);
}

absl::Status WriteConfigFiles(const DecoderConfig& c, Json json,
                              const std::string& folder,
                              c10::ScalarType dtype) {
  json["dtype"] = DtypeName(dtype);
  json["torch_dtype"] = DtypeName(dtype);
  json.erase("quantization_config");  // what is saved isn't
  Json generation = {{"_from_model_config", true}};
  if (!c.source_generation_config.empty()) {
    generation = ParseJson<Json>(c.source_generation_config);
  }
  // A folder's own ids are kept: there may be several.
  const auto keep_or_set = [](const char* key, absl::optional<int64_t> id,
                              Json* out) {
    if (out->contains(key)) return;
    (*out)[key] = id.has_value() ? Json(*id) : Json(nullptr);
  };
  for (Json* out : {&json, &generation}) {
    keep_or_set("bos_token_id", c.bos_token_id, out);
    keep_or_set("eos_token_id", c.eos_token_id, out);
    if (c.pad_token_id.has_value()) {
      keep_or_set("pad_token_id", c.pad_token_id, out);
    }
  }
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(folder + "/config.json", json.dump(2) + "\n"));
  return WriteWholeFile(folder + "/generation_config.json",
                        generation.dump(2) + "\n");
}

}  // namespace capstan::decoder
