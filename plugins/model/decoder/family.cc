// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/family.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan::decoder {
namespace {

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
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  CAPSTAN_RETURN_IF_ERROR(keys.FailIf(FinishSizes(&config)));
  config.source_config = std::move(text);
  const std::string beside =
      path.substr(0, path.rfind('/') + 1) + "generation_config.json";
  absl::StatusOr<std::string> generation = ReadWholeFile(beside);
  if (generation.ok()) {
    CAPSTAN_RETURN_IF_ERROR(ParseObject(beside, *generation).status());
    config.source_generation_config = *std::move(generation);
  }
  return config;
}

}  // namespace

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
  return ReadConfigFile(folder + "/config.json");
}

absl::StatusOr<DecoderConfig> ReadFolder(const std::string& folder,
                                         ReadKeys read) {
  const std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path));
  return ReadText(path, std::move(text), nullptr, read);
}

Json SourceKeys(const DecoderConfig& config) {
  return config.source_config.empty() ? Json::object()
                                      : ParseJson<Json>(config.source_config);
}

void AddRopeSpellings(const Rope& rope, Json* json) {
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

absl::Status WriteConfigFiles(const DecoderConfig& c, Json json,
                              const std::string& folder,
                              c10::ScalarType dtype) {
  json["dtype"] = DtypeName(dtype);
  json["torch_dtype"] = DtypeName(dtype);
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
