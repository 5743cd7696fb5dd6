// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/merge_adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/model_files.h"
#include "trainer/process_group/agree.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kAdapterWeights[] = "adapter_model.safetensors";

// Tensor names of a module's two factors in the adapter's file.
struct Factors {
  std::string a;  // [rank, in]
  std::string b;  // [out, rank]
};

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
    Factors& found = factors[parts->module + ".weight"];
    (parts->is_b ? found.b : found.a) = name;
  }
  for (const auto& [weight, found] : factors) {
    const std::string module = weight.substr(0, weight.rfind('.'));
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

// Writes one of the base's files, merged.
absl::Status WriteMerged(const std::string& path,
                         const std::vector<std::string>& names,
                         const SafetensorsReader& base,
                         const SafetensorsReader& adapter,
                         const std::map<std::string, Factors>& factors,
                         double scale) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path));
  for (const std::string& name : names) {
    const TensorEntry& entry = base.tensors().at(name);
    writer->Declare(name, entry.dtype, entry.shape);
  }
  for (const std::string& name : names) {
    const TensorEntry& entry = base.tensors().at(name);
    const auto found = factors.find(name);
    if (found == factors.end()) {
      CAPSTAN_RETURN_IF_ERROR(writer->Append(entry.data, entry.bytes));
      continue;
    }
    CAPSTAN_ASSIGN_OR_RETURN(at::Tensor weight, ReadTensor(base, name));
    CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor a,
                             ReadTensor(adapter, found->second.a));
    CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor b,
                             ReadTensor(adapter, found->second.b));
    weight.add_(at::mm(b, a).mul_(scale));
    const at::Tensor stored = weight.to(entry.dtype).contiguous();
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
absl::Status CheckBase(const AdapterMerge& merge, const SafetensorsReader& base,
                       const std::map<std::string, Factors>& factors) {
  const absl::optional<uint32_t> want = ReadBaseChecksum(merge.adapter);
  if (!want.has_value() || merge.other_base) return absl::OkStatus();
  std::map<std::string, int64_t> weights;
  for (const auto& [name, found] : factors) {
    weights[name] = base.tensors().at(name).numel;
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const uint32_t is,
      BaseChecksum(weights, [&base](const std::string& name, int64_t begin,
                                    int64_t count, float* out) {
        return base.ReadFloats(name, begin, count, out);
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
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> base,
                           SafetensorsReader::Open(merge.base));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> adapter,
                           SafetensorsReader::Open(absl::StrCat(
                               merge.adapter, "/", kAdapterWeights)));
  CAPSTAN_ASSIGN_OR_RETURN(
      const auto factors, FactorsOf(*adapter, *base, spec.rank, merge.adapter));
  CAPSTAN_RETURN_IF_ERROR(CheckBase(merge, *base, factors));
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, entry] : base->tensors()) {
    files[fs::path(entry.file).filename().string()].push_back(name);
  }
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(to));  // left by a killed run
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(to));
  for (const auto& [file, names] : files) {
    CAPSTAN_RETURN_IF_ERROR(WriteMerged(absl::StrCat(to, "/", file), names,
                                        *base, *adapter, factors,
                                        spec.scale()));
  }
  CAPSTAN_RETURN_IF_ERROR(CopyIndex(merge.base, to));
  CAPSTAN_RETURN_IF_ERROR(WriteCard(merge, to));
  return CopyOtherFiles(merge, to);
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
