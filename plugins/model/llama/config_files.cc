// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/config_files.h"

#include <utility>

#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace llama {

absl::Status FinishFromFolder(const std::string& folder, std::string source,
                              ConfigKeys& keys, LlamaConfig* config) {
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  const absl::optional<ConfigProblem> problem = FinishSizes(config);
  if (problem.has_value()) {
    keys.Fail(problem->key, problem->text);
    return keys.status();
  }
  config->source_config = std::move(source);
  const std::string path = folder + "/generation_config.json";
  absl::StatusOr<std::string> generation = ReadWholeFile(path);
  if (generation.ok()) {
    CAPSTAN_RETURN_IF_ERROR(ParseObject(path, *generation).status());
    config->source_generation_config = *std::move(generation);
  }
  return absl::OkStatus();
}

Json SourceKeys(const LlamaConfig& config) {
  return config.source_config.empty() ? Json::object()
                                      : ParseJson<Json>(config.source_config);
}

absl::Status WriteConfigFiles(const LlamaConfig& c, Json json,
                              const std::string& folder,
                              c10::ScalarType dtype) {
  json["dtype"] = DtypeName(dtype);
  json["torch_dtype"] = DtypeName(dtype);
  Json generation = {{"_from_model_config", true}};
  if (!c.source_generation_config.empty()) {
    generation = ParseJson<Json>(c.source_generation_config);
  }
  // A folder's own ids stay as they are: there may be several.
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

}  // namespace llama
}  // namespace capstan
