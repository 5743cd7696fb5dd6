// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/merge_adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/lib/packed_matrix.h"
#include "plugins/sdk/lib/quantized_folder.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/process_group/agree.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kAdapterWeights[] = "adapter_model.safetensors";

// What the adapter calls a weight and the module's two factors.
struct Factors {
  std::string weight;
  std::string a;  // [rank, in]
  std::string b;  // [out, rank]
};

// The weight as the base's files name it, if they have it. An adapter for the
// text part of a model that also sees (Gemma 3) names that part's own modules,
// while the whole model's files have them under the text part's name, which
// transformers 4 and 5 write in different places.
std::string NameInBase(const std::string& weight,
                       const SafetensorsReader& base) {
  constexpr const char* kStarts[] = {"language_model.model.",
                                     "model.language_model.", "model."};
  if (base.tensors().count(weight) > 0) return weight;
  for (const char* start : kStarts) {
    absl::string_view rest = weight;
    if (!absl::ConsumePrefix(&rest, start)) continue;
    for (const char* other : kStarts) {
      std::string name = absl::StrCat(other, rest);
      if (base.tensors().count(name) > 0) return name;
    }
    break;
  }
  return weight;
}

absl::StatusOr<at::Tensor> ReadTensor(const SafetensorsReader& reader,
                                      const std::string& name) {
  const TensorEntry& entry = reader.tensors().at(name);
  at::Tensor tensor = at::empty(entry.shape, at::kFloat);
  CAPSTAN_RETURN_IF_ERROR(reader.ReadFloats(name, 0, entry.numel,
                                            tensor.mutable_data_ptr<float>()));
  return tensor;
}

// Keyed by the base's weight; checks that each exists and fits there.
absl::StatusOr<std::map<std::string, Factors>> FactorsOf(
    const SafetensorsReader& adapter, const SafetensorsReader& base,
    int64_t rank, const std::string& adapter_folder) {
  const auto misfit = [&](const std::string& module, const std::string& how) {
    return absl::FailedPreconditionError(
        absl::StrCat(adapter_folder, " is an adapter for another model: '",
                     module, "' ", how));
  };
  std::map<std::string, Factors> factors;
  for (const auto& [name, entry] : adapter.tensors()) {
    const absl::optional<AdapterName> parts = ParseAdapterName(name);
    if (!parts.has_value()) {
      return absl::UnimplementedError(
          absl::StrCat(adapter_folder, "/", kAdapterWeights, ": '", name,
                       "' is neither a lora_A nor a lora_B of a module"));
    }
    const std::string weight = parts->module + ".weight";
    Factors& found = factors[NameInBase(weight, base)];
    found.weight = weight;
    (parts->is_b ? found.b : found.a) = name;
  }
  for (const auto& [weight, found] : factors) {
    const std::string module = found.weight.substr(0, found.weight.rfind('.'));
    if (found.a.empty() || found.b.empty()) {
      return absl::DataLossError(
          absl::StrCat(adapter_folder, "/", kAdapterWeights, ": '", module,
                       "' has no ", found.a.empty() ? "lora_A" : "lora_B"));
    }
    const auto place = base.tensors().find(weight);
    if (place == base.tensors().end()) {
      return misfit(module, "isn't in the base");
    }
    const std::vector<int64_t>& shape = place->second.shape;
    if (shape.size() != 2 ||
        adapter.tensors().at(found.a).shape !=
            std::vector<int64_t>{rank, shape[1]} ||
        adapter.tensors().at(found.b).shape !=
            std::vector<int64_t>{shape[0], rank}) {
      return misfit(module,
                    absl::StrCat("has shape [", absl::StrJoin(shape, ", "),
                                 "] in the base, and its factors of "
                                 "rank ",
                                 rank, " don't make that"));
    }
  }
  if (factors.empty()) {
    return absl::DataLossError(
        absl::StrCat(adapter_folder, "/", kAdapterWeights, " has no tensors"));
  }
  return factors;
}

// How far merged weights are from what they were rounded to.
struct Rounding {
  // The norm of all differences over that of all weights.
  double relative() const {
    return sum == 0.0 ? 0.0 : std::sqrt(squared_error / sum);
  }
  double sum = 0.0, squared_error = 0.0;  // of squares
  double most = 0.0;  // difference over its matrix's largest weight
};

// `weight`, in float32, rounded to the file's dtype.
at::Tensor Rounded(const at::Tensor& weight, c10::ScalarType dtype,
                   Rounding* rounding) {
  at::Tensor stored = weight.to(dtype).contiguous();
  if (dtype == at::kFloat) return stored;
  const at::Tensor exact = weight.to(at::kDouble);
  const at::Tensor error = stored.to(at::kDouble) - exact;
  rounding->sum += exact.square().sum().item<double>();
  rounding->squared_error += error.square().sum().item<double>();
  const double largest = exact.abs().max().item<double>();
  if (largest > 0.0) {
    rounding->most =
        std::max(rounding->most, error.abs().max().item<double>() / largest);
  }
  return stored;
}

// The base as the adapter knows it: as its folder has it, or quantised.
class Base {
 public:
  Base(std::unique_ptr<SafetensorsReader> folder, Quantize quantize)
      : folder_(std::move(folder)), quantize_(quantize) {}

  const SafetensorsReader& folder() const { return *folder_; }
  // Whether the folder itself has packed matrices.
  bool folder_is_quantised() const {
    return dynamic_cast<const QuantizedReader*>(folder_.get()) != nullptr;
  }
  bool quantised() const {
    return quantize_ != Quantize::kFolders || folder_is_quantised();
  }

  // Of an adapted module, what the adapter was trained on; of other tensors,
  // the folder's values.
  absl::Status Read(const std::string& name, bool adapted, int64_t begin,
                    int64_t count, float* out) const {
    if (!adapted || quantize_ == Quantize::kFolders || folder_is_quantised()) {
      return folder_->ReadFloats(name, begin, count, out);
    }
    std::unique_ptr<PackedMatrix>& matrix = matrices_[name];
    if (matrix == nullptr) {
      matrix = QuantizeMatrix(
          folder_->tensors().at(name).numel, quantize_ == Quantize::kNf4Double,
          [this, name](int64_t from, int64_t n, float* values) {
            return folder_->ReadFloats(name, from, n, values);
          },
          name);
    }
    return matrix->ReadValues(begin, count, out);
  }

 private:
  const std::unique_ptr<SafetensorsReader> folder_;
  const Quantize quantize_;
  mutable std::map<std::string, std::unique_ptr<PackedMatrix>> matrices_;
};

absl::StatusOr<at::Tensor> ReadBase(const Base& base, const std::string& name,
                                    bool adapted) {
  const TensorEntry& entry = base.folder().tensors().at(name);
  at::Tensor tensor = at::empty(entry.shape, at::kFloat);
  CAPSTAN_RETURN_IF_ERROR(base.Read(name, adapted, 0, entry.numel,
                                    tensor.mutable_data_ptr<float>()));
  return tensor;
}

// Writes one of the base's files, merged.
absl::Status WriteMerged(const std::string& path,
                         const std::vector<std::string>& names,
                         const Base& whole, const SafetensorsReader& adapter,
                         const std::map<std::string, Factors>& factors,
                         double scale, Rounding* rounding) {
  const SafetensorsReader& base = whole.folder();
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path));
  for (const std::string& name : names) {
    const TensorEntry& entry = base.tensors().at(name);
    writer->Declare(name, entry.dtype, entry.shape);
  }
  for (const std::string& name : names) {
    const TensorEntry& entry = base.tensors().at(name);
    const auto found = factors.find(name);
    if (found == factors.end() && entry.data != nullptr) {
      CAPSTAN_RETURN_IF_ERROR(writer->Append(entry.data, entry.bytes));
      continue;
    }
    CAPSTAN_ASSIGN_OR_RETURN(at::Tensor weight,
                             ReadBase(whole, name, found != factors.end()));
    if (found == factors.end()) {
      const at::Tensor stored = Rounded(weight, entry.dtype, rounding);
      CAPSTAN_RETURN_IF_ERROR(
          writer->Append(stored.const_data_ptr(), entry.bytes));
      continue;
    }
    CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor a,
                             ReadTensor(adapter, found->second.a));
    CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor b,
                             ReadTensor(adapter, found->second.b));
    weight.add_(at::mm(b, a).mul_(scale));
    const at::Tensor stored = Rounded(weight, entry.dtype, rounding);
    CAPSTAN_RETURN_IF_ERROR(
        writer->Append(stored.const_data_ptr(), entry.bytes));
  }
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  return writer->Close();
}

// Copies the base's shard index, which applies to `to` as well.
absl::Status CopyIndex(const std::string& base, const std::string& to) {
  constexpr char kIndex[] = "/model.safetensors.index.json";
  if (!PathExists(base + kIndex)) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(base + kIndex));
  return WriteWholeFile(to + kIndex, text);
}

// The same for a base whose index lists the parts of packed matrices.
absl::Status WriteIndex(
    const SafetensorsReader& base,
    const std::map<std::string, std::vector<std::string>>& files,
    const std::string& to) {
  if (files.size() == 1) return absl::OkStatus();
  int64_t bytes = 0;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const auto& [file, names] : files) {
    for (const std::string& name : names) {
      map[name] = file;
      bytes += base.tensors().at(name).bytes;
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}},
                                        {"weight_map", map}};
  return WriteWholeFile(to + "/model.safetensors.index.json",
                        index.dump(2) + "\n");
}

// The merged weights aren't quantised.
absl::Status DropQuantization(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(nlohmann::ordered_json json,
                           ParseObject(path, text));
  if (json.erase("quantization_config") == 0) return absl::OkStatus();
  return WriteWholeFile(path, json.dump(2) + "\n");
}

// Copies the base's other files, except for the tokenizer if the adapter has
// one. Returns a note for the user.
absl::StatusOr<std::string> CopyOtherFiles(const AdapterMerge& merge,
                                           const std::string& to) {
  const bool own_tokenizer = PathExists(merge.adapter + "/tokenizer.json");
  if (own_tokenizer) {
    std::error_code error;
    for (fs::directory_iterator it(merge.adapter, error), end;
         !error && it != end; it.increment(error)) {
      const std::string path = it->path().string();
      const std::string name = it->path().filename().string();
      if (!IsRegularFile(path) || !IsTokenizerFile(name)) continue;
      CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
      CAPSTAN_RETURN_IF_ERROR(
          WriteWholeFile(absl::StrCat(to, "/", name), text));
    }
    if (error) {
      return absl::ErrnoToStatus(
          error.value(), absl::StrCat(merge.adapter, " can't be listed"));
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(const ModelFiles files,
                           CopyModelFiles(merge.base, to, own_tokenizer));
  if (own_tokenizer) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                             LoadTokenizer(merge.adapter));
    CAPSTAN_RETURN_IF_ERROR(SetSpecialTokens(to, *tokenizer));
  }
  return ModelFilesNote(merge.base, merge.output, files);
}

absl::Status WriteCard(const AdapterMerge& merge, const std::string& to) {
  return WriteWholeFile(
      to + "/README.md",
      absl::StrCat("---\nlibrary_name: transformers\npipeline_tag: "
                   "text-generation\ntags:\n- capstan\n",
                   BaseModelMetadata(merge.base), "---\n\n# ",
                   ModelName(merge.output), "\n\n`", ModelName(merge.base),
                   "` with the LoRA adapter `", ModelName(merge.adapter),
                   "` merged into its weights by `trainer merge`.\n"));
}

// Whether the adapter was trained on these weights, if it records that.
absl::Status CheckBase(const AdapterMerge& merge, const Base& base,
                       const std::map<std::string, Factors>& factors) {
  const absl::optional<uint32_t> want = ReadBaseChecksum(merge.adapter);
  if (!want.has_value() || merge.other_base) return absl::OkStatus();
  // As the adapter names them, whose names are in its checksum.
  std::map<std::string, int64_t> weights;
  std::map<std::string, std::string> names;
  for (const auto& [name, found] : factors) {
    weights[found.weight] = base.folder().tensors().at(name).numel;
    names[found.weight] = name;
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const uint32_t is,
      BaseChecksum(weights, [&](const std::string& weight, int64_t begin,
                                int64_t count, float* out) {
        return base.Read(names.at(weight), /*adapted=*/true, begin, count, out);
      }));
  if (is == *want) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s was trained on a base whose weights have the checksum %08x, those of "
      "%s have %08x: it is another model, or another state of it; merge onto "
      "the adapter's own base, or say --other_base to merge all the same",
      merge.adapter, *want, merge.base, is));
}

// Merges into the folder `to`. Returns a note for the user.
absl::StatusOr<std::string> Merge(const AdapterMerge& merge,
                                  const std::string& to) {
  const at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const LoraSpec spec,
                           ReadAdapterConfig(merge.adapter));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> opened,
                           OpenWeights(merge.base));
  const Base whole(std::move(opened), spec.quantize);
  const SafetensorsReader* const base = &whole.folder();
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> adapter,
                           SafetensorsReader::Open(absl::StrCat(
                               merge.adapter, "/", kAdapterWeights)));
  CAPSTAN_ASSIGN_OR_RETURN(
      const auto factors, FactorsOf(*adapter, *base, spec.rank, merge.adapter));
  CAPSTAN_RETURN_IF_ERROR(CheckBase(merge, whole, factors));
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, entry] : base->tensors()) {
    files[fs::path(entry.file).filename().string()].push_back(name);
  }
  Rounding rounding;
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(to));  // left by a killed run
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(to));
  for (const auto& [file, names] : files) {
    CAPSTAN_RETURN_IF_ERROR(WriteMerged(absl::StrCat(to, "/", file), names,
                                        whole, *adapter, factors, spec.scale(),
                                        &rounding));
  }
  CAPSTAN_RETURN_IF_ERROR(whole.folder_is_quantised()
                              ? WriteIndex(*base, files, to)
                              : CopyIndex(merge.base, to));
  CAPSTAN_RETURN_IF_ERROR(WriteCard(merge, to));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string note, CopyOtherFiles(merge, to));
  if (!whole.quantised()) return note;
  CAPSTAN_RETURN_IF_ERROR(DropQuantization(to + "/config.json"));
  return absl::StrCat(
      note, note.empty() ? "" : "\n",
      absl::StrFormat(
          "the base is what NF4 keeps of it, as in training; rounding the "
          "merged weights to the file's dtype moved them by %.1e of their "
          "size (root mean square), and none by more than %.1e of its "
          "matrix's largest",
          rounding.relative(), rounding.most));
}

}  // namespace

absl::StatusOr<std::string> MergeAdapter(const AdapterMerge& request) {
  AdapterMerge merge = request;
  std::string& path = merge.output;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  std::error_code error;
  if (PathExists(path) && !fs::is_empty(path, error)) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is there already; name another folder"));
  }
  const std::string temporary = HiddenSibling(path, "tmp");
  std::string note;
  absl::Status status = CatchAll([&] {
    CAPSTAN_ASSIGN_OR_RETURN(note, Merge(merge, temporary));
    CAPSTAN_RETURN_IF_ERROR(SyncFolderAndFiles(temporary));
    return ReplaceFolder(temporary, path);
  });
  if (!status.ok()) {
    RemoveTree(temporary).IgnoreError();
    return status;
  }
  return note;
}

}  // namespace capstan
