// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/hf_folder.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"
#include "trainer/checkpoint/base_weights.h"
#include "trainer/checkpoint/model_files.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

int64_t Bytes(const ParameterSpec& spec, c10::ScalarType dtype) {
  return spec.numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

// The weight files on rank 0, filled in parameter order. Split as in
// transformers: a shard is full when the next tensor would exceed the limit.
class WeightFiles {
 public:
  // NAME.safetensors, or its shards.
  WeightFiles(std::string folder, std::string name, c10::ScalarType dtype,
              int64_t max_shard_bytes, std::vector<ParameterSpec> specs)
      : folder_(std::move(folder)),
        name_(std::move(name)),
        dtype_(dtype),
        specs_(std::move(specs)) {
    int64_t shard_bytes = 0;
    for (size_t i = 0; i < specs_.size(); ++i) {
      const int64_t bytes = Bytes(specs_[i], dtype);
      if (i == 0 ||
          (shard_bytes > 0 && bytes > max_shard_bytes - shard_bytes)) {
        first_.push_back(i);
        shard_bytes = 0;
      }
      shard_bytes += bytes;
      total_bytes_ += bytes;
    }
    first_.push_back(specs_.size());
  }

  absl::Status Add(int index, const at::Tensor& value) {
    if (writer_ == nullptr || index == first_[shard_ + 1]) {
      CAPSTAN_RETURN_IF_ERROR(OpenNext());
    }
    const ParameterSpec& spec = specs_[index];
    if (value.sizes() != at::IntArrayRef(spec.shape)) {
      return absl::InternalError(absl::StrCat("the strategy gave parameter '",
                                              spec.name, "' in another shape"));
    }
    const at::Tensor converted = value.to(at::kCPU, dtype_).contiguous();
    return writer_->Append(converted.data_ptr(), Bytes(spec, dtype_));
  }

  absl::Status Finish() {
    if (writer_ == nullptr || shard_ + 2 != first_.size()) {
      return absl::InternalError("the strategy left out parameters");
    }
    CAPSTAN_RETURN_IF_ERROR(writer_->Close());
    if (shard_count() == 1) return absl::OkStatus();
    Json weight_map = Json::object();
    for (size_t shard = 0; shard < shard_count(); ++shard) {
      for (int i = first_[shard]; i < first_[shard + 1]; ++i) {
        weight_map.push_back({specs_[i].name, FileName(shard)});
      }
    }
    const Json index = {{"metadata", {{"total_size", total_bytes_}}},
                        {"weight_map", std::move(weight_map)}};
    return WriteWholeFile(
        absl::StrCat(folder_, "/", name_, ".safetensors.index.json"),
        index.dump(2) + "\n");
  }

 private:
  size_t shard_count() const { return first_.size() - 1; }

  std::string FileName(size_t shard) const {
    if (shard_count() == 1) return name_ + ".safetensors";
    return absl::StrFormat("%s-%05d-of-%05d.safetensors", name_, shard + 1,
                           shard_count());
  }

  absl::Status OpenNext() {
    if (writer_ != nullptr) {
      CAPSTAN_RETURN_IF_ERROR(writer_->Close());
      ++shard_;
    }
    CAPSTAN_ASSIGN_OR_RETURN(writer_, SafetensorsWriter::Create(absl::StrCat(
                                          folder_, "/", FileName(shard_))));
    for (int i = first_[shard_]; i < first_[shard_ + 1]; ++i) {
      writer_->Declare(specs_[i].name, dtype_, specs_[i].shape);
    }
    return absl::OkStatus();
  }

  const std::string folder_;
  const std::string name_;
  const c10::ScalarType dtype_;
  const std::vector<ParameterSpec> specs_;
  std::vector<int> first_;  // first parameter of each shard, and the end
  int64_t total_bytes_ = 0;
  size_t shard_ = 0;
  std::unique_ptr<SafetensorsWriter> writer_;
};

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
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(
      path + "/capstan.json",
      CapstanJson(folder.config_text, folder.base_weights,
                  folder.lora.has_value() ? folder.lora->quantize
                                          : Quantize::kFolders)));
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

WeightFiles FilesOf(const std::string& path, const FinalFolder& folder,
                    const Model& model) {
  std::vector<ParameterSpec> specs;
  for (const Written& tensor : WrittenParameters(folder, model)) {
    specs.push_back(model.parameters()[tensor.index]);
    specs.back().name = tensor.name;
  }
  if (!folder.lora.has_value()) {
    return WeightFiles(path, "model", folder.dtype, folder.max_shard_bytes,
                       std::move(specs));
  }
  // PEFT doesn't support shards.
  return WeightFiles(path, "adapter_model", c10::ScalarType::Float,
                     std::numeric_limits<int64_t>::max(), std::move(specs));
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

  WeightFiles files = FilesOf(temporary, folder, model);
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
            status = CatchAll([&] { return files.Add(place, value); });
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
                        const std::string& base_weights, Quantize quantize) {
  nlohmann::ordered_json json = {{"format", 1}, {"config", config}};
  if (!base_weights.empty()) json[kBaseWeightsKey] = base_weights;
  if (QuantizeName(quantize) != nullptr) {
    json[kQuantizeKey] = QuantizeName(quantize);
  }
  return json.dump(2) + "\n";
}

}  // namespace capstan
