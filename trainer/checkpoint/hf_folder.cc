// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/hf_folder.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/model.h"
#include "trainer/checkpoint/base_weights.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/checkpoint/weight_files.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// capstan.json's key for the digest of the folder's weights.
constexpr char kWeightsKey[] = "weights";

// Writes a parameter's value as tensor `index` of the files.
absl::Status AddWeight(const WeightFileTensor& tensor, int index,
                       const at::Tensor& value, WeightFiles* files) {
  if (value.sizes() != at::IntArrayRef(tensor.shape)) {
    return absl::InternalError(absl::StrCat("the strategy gave parameter '",
                                            tensor.name, "' in another shape"));
  }
  const at::Tensor converted = value.to(at::kCPU, tensor.dtype).contiguous();
  return files->Add(index, converted.const_data_ptr());
}

absl::Status SetSpecialTokensIn(const std::string& path,
                                const Tokenizer::SpecialIds& ids) {
  Json json = Json::object();
  if (PathExists(path)) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
    json = ParseJson<Json>(text);
    if (!json.is_object()) {
      return absl::InternalError(absl::StrCat(path, " isn't a JSON object"));
    }
  }
  const Json before = json;
  for (const auto& [key, id] :
       {std::pair<const char*, int64_t>{"bos_token_id", ids.bos},
        {"eos_token_id", ids.eos},
        {"pad_token_id", ids.pad}}) {
    if (id < 0) continue;
    // Several EOS tokens, this among them.
    const auto old = json.find(key);
    if (old != json.end() && old->is_array() &&
        std::find(old->begin(), old->end(), Json(id)) != old->end()) {
      continue;
    }
    json[key] = id;
  }
  if (json == before) return absl::OkStatus();
  return WriteWholeFile(path, json.dump(2) + "\n");
}

// Adds the base folder's remaining files; `path` will become the final folder.
absl::Status AddBaseFiles(const std::string& path, const FinalFolder& folder) {
  // An adapter's base keeps them.
  if (folder.base_model.empty() || folder.lora.has_value()) {
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const ModelFiles files,
      CopyModelFiles(folder.base_model, path,
                     /*own_tokenizer=*/folder.tokenizer != nullptr));
  const std::string note =
      ModelFilesNote(folder.base_model, folder.path, files);
  if (folder.note != nullptr && !note.empty()) folder.note(note);
  return absl::OkStatus();
}

absl::Status WriteOtherFiles(const std::string& path, const FinalFolder& folder,
                             const Model& model) {
  if (folder.lora.has_value()) {
    CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(
        path + "/adapter_config.json",
        AdapterConfigJson(*folder.lora, folder.base_model.empty()
                                            ? ""
                                            : PublicPlace(folder.base_model))));
  } else {
    CAPSTAN_RETURN_IF_ERROR(model.SaveConfig(path, folder.dtype));
    if (folder.tokenizer != nullptr) {
      CAPSTAN_RETURN_IF_ERROR(SetSpecialTokens(path, *folder.tokenizer));
    }
  }
  if (folder.tokenizer != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(folder.tokenizer->Save(path));
  }
  for (const auto& [name, text] : folder.files) {
    CAPSTAN_RETURN_IF_ERROR(
        WriteWholeFile(absl::StrCat(path, "/", name), text));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string weights,
                           DigestOfWeights(WeightsOfFinal(path)));
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(path + "/capstan.json",
                     CapstanJson(folder.config_text, folder.base_weights,
                                 folder.lora.has_value() ? folder.lora->quantize
                                                         : Quantize::kFolders,
                                 weights)));
  return AddBaseFiles(path, folder);
}

// A tensor to write: a parameter, and its name there.
struct Written {
  int index = 0;
  std::string name;
};

std::vector<Written> WrittenParameters(const FinalFolder& folder,
                                       const Model& model) {
  std::vector<Written> written;
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    if (!folder.lora.has_value() || IsAdapterParameter(specs[i].name)) {
      written.push_back({i, specs[i].name});
    } else {
      for (const std::string& name : model.SavedNames(i)) {
        written.push_back({i, name});
      }
    }
  }
  return written;
}

std::vector<WeightFileTensor> TensorsOf(const FinalFolder& folder,
                                        const Model& model) {
  std::vector<WeightFileTensor> tensors;
  for (const Written& tensor : WrittenParameters(folder, model)) {
    tensors.push_back(
        {tensor.name,
         folder.lora.has_value() ? c10::ScalarType::Float : folder.dtype,
         model.parameters()[tensor.index].shape});
  }
  return tensors;
}

WeightFiles FilesOf(const std::string& path, const FinalFolder& folder,
                    std::vector<WeightFileTensor> tensors) {
  if (!folder.lora.has_value()) {
    return WeightFiles(path, "model", folder.max_shard_bytes,
                       std::move(tensors));
  }
  // PEFT doesn't support shards.
  return WeightFiles(path, "adapter_model", std::numeric_limits<int64_t>::max(),
                     std::move(tensors));
}

absl::Status Save(const std::string& path, const FinalFolder& folder,
                  const Model& model, Strategy& strategy, ProcessGroup& group) {
  const bool first = group.rank() == 0;
  const std::string temporary = HiddenSibling(path, "tmp");
  const auto what = [&path](int) { return absl::StrCat("write ", path); };

  absl::Status status;
  if (first) {
    status = RemoveTree(temporary);  // left by a killed run
    status.Update(MakeFolder(temporary));
  }
  CAPSTAN_RETURN_IF_ERROR(Agree(group, status, what));

  const std::vector<WeightFileTensor> tensors = TensorsOf(folder, model);
  WeightFiles files = FilesOf(temporary, folder, tensors);
  // Each parameter's indices in `files`.
  std::vector<std::vector<int>> places(model.parameters().size());
  int count = 0;
  for (const Written& tensor : WrittenParameters(folder, model)) {
    places[tensor.index].push_back(count++);
  }
  // An error on rank 0 alone must not end the loop: other ranks are in its
  // collectives.
  absl::Status collective = CatchAll([&] {
    return strategy.ForEachFullParameter(
        [&](int index, const at::Tensor& value) {
          for (const int place : places[index]) {
            if (!status.ok()) break;
            status = CatchAll([&] {
              return AddWeight(tensors[place], place, value, &files);
            });
          }
          return absl::OkStatus();
        });
  });
  status.Update(collective);
  if (first && status.ok()) {
    status = CatchAll([&] {
      CAPSTAN_RETURN_IF_ERROR(files.Finish());
      CAPSTAN_RETURN_IF_ERROR(WriteOtherFiles(temporary, folder, model));
      return SyncFolderAndFiles(temporary);
    });
  }
  // An older folder is replaced only if no rank failed.
  status = Agree(group, status, what);
  if (status.ok()) {
    if (first) status = ReplaceFolder(temporary, path);
    status = Agree(group, status, what);
  }
  if (first && !status.ok()) RemoveTree(temporary).IgnoreError();
  return status;
}

}  // namespace

absl::Status SetSpecialTokens(const std::string& folder,
                              const Tokenizer& tokenizer) {
  const Tokenizer::SpecialIds ids = tokenizer.special_ids();
  if (ids.bos < 0 && ids.eos < 0 && ids.pad < 0) return absl::OkStatus();
  for (const char* name : {"/config.json", "/generation_config.json"}) {
    CAPSTAN_RETURN_IF_ERROR(SetSpecialTokensIn(folder + name, ids));
  }
  return absl::OkStatus();
}

absl::Status SaveHuggingFaceFolder(const FinalFolder& folder,
                                   const Model& model, Strategy& strategy,
                                   ProcessGroup& group) {
  // "out/final/" has no file name to make a sibling of.
  std::string path = folder.path;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return CatchAll([&] { return Save(path, folder, model, strategy, group); });
}

std::string CapstanJson(const std::string& config,
                        const std::string& base_weights, Quantize quantize,
                        const std::string& weights) {
  nlohmann::ordered_json json = {{"format", 1}, {"config", config}};
  if (!base_weights.empty()) json[kBaseWeightsKey] = base_weights;
  if (QuantizeName(quantize) != nullptr) {
    json[kQuantizeKey] = QuantizeName(quantize);
  }
  if (!weights.empty()) json[kWeightsKey] = weights;
  return json.dump(2) + "\n";
}

std::string WeightsOfFinal(const std::string& folder) {
  const std::string adapter = folder + "/adapter_model.safetensors";
  return PathExists(adapter) ? adapter : folder;
}

absl::StatusOr<bool> CheckFinalFolder(const std::string& folder) {
  const auto damaged = [](const std::string& path, absl::string_view how) {
    return absl::DataLossError(
        absl::StrCat(path, ": is damaged: ", how, kWhatToDo));
  };
  const std::string path = folder + "/capstan.json";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const Json json = ParseJson<Json>(text);
  if (!json.is_object()) return damaged(path, "it isn't a JSON object");
  const auto found = json.find(kWeightsKey);
  if (found == json.end() || !found->is_string()) return false;
  const absl::StatusOr<std::string> weights =
      DigestOfWeights(WeightsOfFinal(folder));
  if (!weights.ok()) return damaged(folder, weights.status().message());
  if (*weights == found->get<std::string>()) return true;
  return damaged(
      folder, absl::StrCat("its weights are ", *weights, ", capstan.json says ",
                           found->get<std::string>()));
}

}  // namespace capstan
