// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/weight_files.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/crc32c.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {

int64_t WeightFileTensor::bytes() const {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t size : shape) bytes *= size;
  return bytes;
}

WeightFiles::WeightFiles(std::string folder, std::string name,
                         int64_t max_shard_bytes,
                         std::vector<WeightFileTensor> tensors)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      tensors_(std::move(tensors)) {
  int64_t shard_bytes = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int64_t bytes = tensors_[i].bytes();
    if (i == 0 || (shard_bytes > 0 && bytes > max_shard_bytes - shard_bytes)) {
      first_.push_back(i);
      shard_bytes = 0;
    }
    shard_bytes += bytes;
    total_bytes_ += bytes;
  }
  first_.push_back(tensors_.size());
}

absl::Status WeightFiles::Add(int index, const void* data) {
  if (writer_ == nullptr || index == first_[shard_ + 1]) {
    CAPSTAN_RETURN_IF_ERROR(OpenNext());
  }
  const int64_t bytes = tensors_[index].bytes();
  checksums_.push_back(
      Crc32c({static_cast<const char*>(data), static_cast<size_t>(bytes)}));
  return writer_->Append(data, bytes);
}

absl::Status WeightFiles::Finish() {
  if (writer_ == nullptr || shard_ + 2 != first_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder_, ": not all weights were written"));
  }
  CAPSTAN_RETURN_IF_ERROR(writer_->Close());
  if (shard_count() == 1) return Compare();
  auto weight_map = nlohmann::ordered_json::object();
  for (size_t shard = 0; shard < shard_count(); ++shard) {
    for (int i = first_[shard]; i < first_[shard + 1]; ++i) {
      weight_map.push_back({tensors_[i].name, FileName(shard)});
    }
  }
  const nlohmann::ordered_json index = {
      {"metadata", {{"total_size", total_bytes_}}},
      {"weight_map", std::move(weight_map)}};
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(
      absl::StrCat(folder_, "/", name_, ".safetensors.index.json"),
      index.dump(2) + "\n"));
  return Compare();
}

absl::Status WeightFiles::Compare() const {
  for (size_t shard = 0; shard < shard_count(); ++shard) {
    const std::string path = absl::StrCat(folder_, "/", FileName(shard));
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader,
                             SafetensorsReader::Open(path));
    for (int i = first_[shard]; i < first_[shard + 1]; ++i) {
      const WeightFileTensor& wanted = tensors_[i];
      const auto found = reader->tensors().find(wanted.name);
      bool same = found != reader->tensors().end();
      if (same) {
        const TensorEntry& entry = found->second;
        const auto bytes = static_cast<size_t>(entry.bytes);
        same = entry.dtype == wanted.dtype && entry.shape == wanted.shape &&
               Crc32c({entry.data, bytes}) == checksums_[i];
        ForgetMapped(entry.data, bytes);
      }
      if (!same) {
        return absl::DataLossError(absl::StrCat(
            path, ": ", wanted.name, " isn't what was written to it"));
      }
    }
  }
  return MappedFile::CheckAll();
}

std::string WeightFiles::FileName(size_t shard) const {
  if (shard_count() == 1) return name_ + ".safetensors";
  return absl::StrFormat("%s-%05d-of-%05d.safetensors", name_, shard + 1,
                         shard_count());
}

absl::Status WeightFiles::OpenNext() {
  if (writer_ != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(writer_->Close());
    ++shard_;
  }
  CAPSTAN_ASSIGN_OR_RETURN(writer_, SafetensorsWriter::Create(absl::StrCat(
                                        folder_, "/", FileName(shard_))));
  for (int i = first_[shard_]; i < first_[shard_ + 1]; ++i) {
    writer_->Declare(tensors_[i].name, tensors_[i].dtype, tensors_[i].shape);
  }
  return absl::OkStatus();
}

}  // namespace capstan
