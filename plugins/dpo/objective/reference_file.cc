// SPDX-License-Identifier: Apache-2.0
#include "plugins/dpo/objective/reference_file.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

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

absl::Status WriteTo(const std::string& path, const Reference& reference) {
  const auto count = static_cast<int64_t>(reference.pairs.size());
  std::vector<int64_t> keys;
  std::vector<ReferenceLogps> logps;
  for (const auto& [key, pair] : reference.pairs) {
    keys.push_back(key);
    logps.push_back(pair);
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path));
  writer->SetMetadata(kModel, reference.model);
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
    if (adapter.has_value() && !adapter->is_b && !adapter->is_magnitude) {
      continue;
    }
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

absl::StatusOr<Reference> ReadReference(const std::string& path) {
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
  Reference reference;
  reference.model = model->second;
  for (int64_t i = 0; i < keys->second.numel; ++i) {
    int64_t key;
    ReferenceLogps pair;
    std::memcpy(&key, keys->second.data + i * sizeof(key), sizeof(key));
    std::memcpy(&pair, logps->second.data + i * sizeof(pair), sizeof(pair));
    if (i > 0 && key <= reference.pairs.rbegin()->first) {
      return Damaged(path, "its keys aren't in order");
    }
    reference.pairs.insert(reference.pairs.end(), {key, pair});
  }
  return reference;
}

absl::StatusOr<int64_t> WriteReference(const std::string& path,
                                       Reference reference) {
  const absl::StatusOr<Reference> old = ReadReference(path);
  if (old.ok() && old->model == reference.model) {
    reference.pairs.insert(old->pairs.begin(), old->pairs.end());
  }
  const std::string folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  const std::string hidden = HiddenSibling(path, "new");
  std::error_code error;
  std::filesystem::remove(hidden, error);
  CAPSTAN_RETURN_IF_ERROR(WriteTo(hidden, reference));
  std::filesystem::rename(hidden, path, error);
  if (error) return WriteError(path, error.value());
  return static_cast<int64_t>(reference.pairs.size());
}

}  // namespace capstan::dpo
