// SPDX-License-Identifier: Apache-2.0
#include "plugins/dpo/objective/reference_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/random.h"
#include "base/status.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan::dpo {
namespace {

constexpr char kKeys[] = "keys";
constexpr char kLogps[] = "logps";
constexpr char kModel[] = "model";

static_assert(sizeof(ReferenceLogps) == 2 * sizeof(float), "a file's layout");

// Up to four stretches of a parameter's initial value.
absl::StatusOr<std::vector<float>> SomeValues(const Model& model, int index,
                                              uint64_t seed) {
  constexpr int64_t kStretches = 4, kLength = 64;
  const int64_t numel = model.parameters()[index].numel();
  const int64_t length = std::min(numel, kLength);
  std::vector<float> values(kStretches * length);
  for (int64_t i = 0; i < kStretches; ++i) {
    const int64_t begin = i * (numel - length) / (kStretches - 1);
    CAPSTAN_RETURN_IF_ERROR(model.InitialValue(index, seed, begin, length,
                                               values.data() + i * length));
  }
  return values;
}

absl::Status Damaged(const std::string& path, absl::string_view what) {
  return absl::DataLossError(
      absl::StrCat(path, " is no file of reference log-probabilities (", what,
                   "): remove it, and run `trainer dpo-reference` again"));
}

absl::Status WriteTo(const std::string& path, const std::string& model,
                     const ReferenceTable& table) {
  const auto count = static_cast<int64_t>(table.size());
  std::vector<int64_t> keys;
  std::vector<ReferenceLogps> logps;
  for (const auto& [key, pair] : table) {
    keys.push_back(key);
    logps.push_back(pair);
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path));
  writer->SetMetadata(kModel, model);
  writer->Declare(kKeys, c10::ScalarType::Long, {count});
  writer->Declare(kLogps, c10::ScalarType::Float, {count, 2});
  CAPSTAN_RETURN_IF_ERROR(writer->Append(keys.data(), count * sizeof(int64_t)));
  CAPSTAN_RETURN_IF_ERROR(
      writer->Append(logps.data(), count * sizeof(ReferenceLogps)));
  return writer->Close();
}

}  // namespace

absl::StatusOr<std::string> ModelFingerprint(const Model& model,
                                             uint64_t seed) {
  uint64_t hash = 0;
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (size_t i = 0; i < specs.size(); ++i) {
    const absl::optional<AdapterName> adapter = ParseAdapterName(specs[i].name);
    // W + B A is W while B is 0, whatever the random A.
    if (adapter.has_value() && !adapter->is_b) continue;
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<float> values,
                             SomeValues(model, static_cast<int>(i), seed));
    const auto is_zero = [](float value) { return value == 0.0f; };
    if (adapter.has_value() &&
        std::all_of(values.begin(), values.end(), is_zero)) {
      continue;
    }
    hash = RandomKey(hash, absl::StrCat(specs[i].name, " ",
                                        absl::StrJoin(specs[i].shape, ",")));
    hash = RandomKey(hash, {reinterpret_cast<const char*>(values.data()),
                            values.size() * sizeof(float)});
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

absl::StatusOr<std::unique_ptr<ReferenceFile>> ReferenceFile::Open(
    const std::string& path) {
  if (!PathExists(path)) {
    return absl::NotFoundError(absl::StrCat(path, " doesn't exist"));
  }
  const auto opened = SafetensorsReader::Open(path);
  if (!opened.ok()) return Damaged(path, opened.status().message());
  const SafetensorsReader& reader = **opened;
  const auto keys = reader.tensors().find(kKeys);
  const auto logps = reader.tensors().find(kLogps);
  const auto model = reader.metadata().find(kModel);
  if (keys == reader.tensors().end() || logps == reader.tensors().end() ||
      model == reader.metadata().end() ||
      keys->second.dtype != c10::ScalarType::Long ||
      logps->second.dtype != c10::ScalarType::Float ||
      keys->second.shape.size() != 1 ||
      logps->second.shape != std::vector<int64_t>{keys->second.shape[0], 2}) {
    return Damaged(path, "it lacks keys [N], logps [N, 2] or a model");
  }
  std::unique_ptr<ReferenceFile> file(new ReferenceFile());
  file->path_ = path;
  file->model_ = model->second;
  file->keys_.resize(keys->second.numel);
  file->logps_.resize(keys->second.numel);
  std::memcpy(file->keys_.data(), keys->second.data, keys->second.bytes);
  std::memcpy(file->logps_.data(), logps->second.data, logps->second.bytes);
  if (!std::is_sorted(file->keys_.begin(), file->keys_.end())) {
    return Damaged(path, "its keys aren't in order");
  }
  return file;
}

bool ReferenceFile::Find(int64_t key, ReferenceLogps* logps) const {
  const auto found = std::lower_bound(keys_.begin(), keys_.end(), key);
  if (found == keys_.end() || *found != key) return false;
  *logps = logps_[found - keys_.begin()];
  return true;
}

ReferenceTable ReferenceFile::table() const {
  ReferenceTable table;
  for (size_t i = 0; i < keys_.size(); ++i) table[keys_[i]] = logps_[i];
  return table;
}

absl::StatusOr<int64_t> WriteReference(const std::string& path,
                                       const std::string& model,
                                       ReferenceTable table) {
  const auto old = ReferenceFile::Open(path);
  if (old.ok() && (*old)->model() == model) {
    const ReferenceTable before = (*old)->table();
    table.insert(before.begin(), before.end());
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  const std::string hidden = HiddenSibling(path, "new");
  std::error_code error;
  std::filesystem::remove(hidden, error);
  CAPSTAN_RETURN_IF_ERROR(WriteTo(hidden, model, table));
  std::filesystem::rename(hidden, path, error);
  if (error) return WriteError(path, error.value());
  return static_cast<int64_t>(table.size());
}

}  // namespace capstan::dpo
