// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/hf_folder.h"

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "plugins/sdk/safetensors.h"
#include "plugins/sdk/status.h"
#include "trainer/checkpoint/agree.h"
#include "trainer/checkpoint/file_util.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

int64_t Bytes(const ParameterSpec& spec, c10::ScalarType dtype) {
  return spec.numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

// The weights' files, on rank 0, filled in the order of the parameters. Split
// as transformers does: a shard is full when the next tensor would take it
// over the limit.
class WeightFiles {
 public:
  WeightFiles(std::string folder, c10::ScalarType dtype,
              int64_t max_shard_bytes, const std::vector<ParameterSpec>& specs)
      : folder_(std::move(folder)), dtype_(dtype), specs_(specs) {
    int64_t shard_bytes = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      const int64_t bytes = Bytes(specs[i], dtype);
      if (i == 0 ||
          (shard_bytes > 0 && bytes > max_shard_bytes - shard_bytes)) {
        first_.push_back(i);
        shard_bytes = 0;
      }
      shard_bytes += bytes;
      total_bytes_ += bytes;
    }
    first_.push_back(specs.size());
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
    return WriteWholeFile(folder_ + "/model.safetensors.index.json",
                          index.dump(2) + "\n");
  }

 private:
  size_t shard_count() const { return first_.size() - 1; }

  std::string FileName(size_t shard) const {
    if (shard_count() == 1) return "model.safetensors";
    return absl::StrFormat("model-%05d-of-%05d.safetensors", shard + 1,
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
  const c10::ScalarType dtype_;
  const std::vector<ParameterSpec>& specs_;
  std::vector<int> first_;  // parameter of each shard, and the end
  int64_t total_bytes_ = 0;
  size_t shard_ = 0;
  std::unique_ptr<SafetensorsWriter> writer_;
};

absl::Status WriteOtherFiles(const std::string& folder, c10::ScalarType dtype,
                             const Model& model, const Tokenizer* tokenizer,
                             const std::string& config_text) {
  CAPSTAN_RETURN_IF_ERROR(model.SaveConfig(folder, dtype));
  if (tokenizer != nullptr) CAPSTAN_RETURN_IF_ERROR(tokenizer->Save(folder));
  const Json capstan = {{"format", 1}, {"config", config_text}};
  return WriteWholeFile(folder + "/capstan.json", capstan.dump(2) + "\n");
}

absl::Status Save(const std::string& folder, c10::ScalarType dtype,
                  int64_t max_shard_bytes, const Model& model,
                  Strategy& strategy, ProcessGroup& group,
                  const Tokenizer* tokenizer, const std::string& config_text) {
  const bool first = group.rank() == 0;
  const std::string temporary = HiddenSibling(folder, "tmp");
  const auto what = [&folder](int) { return absl::StrCat("write ", folder); };

  absl::Status status;
  if (first) {
    status = RemoveTree(temporary);  // a killed run's
    status.Update(MakeFolder(temporary));
  }
  CAPSTAN_RETURN_IF_ERROR(Agree(group, status, what));

  WeightFiles files(temporary, dtype, max_shard_bytes, model.parameters());
  // A failure of rank 0 alone must not end the loop: other ranks are in its
  // collectives.
  absl::Status collective = CatchAll([&] {
    return strategy.ForEachFullParameter(
        [&](int index, const at::Tensor& value) {
          if (status.ok()) {
            status = CatchAll([&] { return files.Add(index, value); });
          }
          return absl::OkStatus();
        });
  });
  status.Update(collective);
  if (first && status.ok()) {
    status = CatchAll([&] {
      CAPSTAN_RETURN_IF_ERROR(files.Finish());
      CAPSTAN_RETURN_IF_ERROR(
          WriteOtherFiles(temporary, dtype, model, tokenizer, config_text));
      return SyncFolder(temporary, /*files=*/true);
    });
  }
  // No rank may have failed before an older folder goes.
  status = Agree(group, status, what);
  if (status.ok()) {
    if (first) status = ReplaceFolder(temporary, folder);
    status = Agree(group, status, what);
  }
  if (first && !status.ok()) RemoveTree(temporary).IgnoreError();
  return status;
}

}  // namespace

absl::Status SaveHuggingFaceFolder(const std::string& folder,
                                   c10::ScalarType dtype,
                                   int64_t max_shard_bytes, const Model& model,
                                   Strategy& strategy, ProcessGroup& group,
                                   const Tokenizer* tokenizer,
                                   const std::string& config_text) {
  // "out/final/" has no name to hide beside.
  std::string path = folder;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return CatchAll([&] {
    return Save(path, dtype, max_shard_bytes, model, strategy, group, tokenizer,
                config_text);
  });
}

}  // namespace capstan
