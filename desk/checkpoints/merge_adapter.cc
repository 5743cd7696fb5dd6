// SPDX-License-Identifier: Apache-2.0
#include "desk/checkpoints/merge_adapter.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/norm.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/lib/packed_matrix.h"
#include "plugins/sdk/lib/quantized_folder.h"
#include "plugins/sdk/lib/safetensors.h"
#include "trainer/checkpoint/base_weights.h"
#include "trainer/checkpoint/hf_folder.h"
#include "trainer/checkpoint/model_files.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kAdapterWeights[] = "adapter_model.safetensors";

// The adapter's names of a weight, of the module's two factors and of DoRA's
// magnitudes.
struct Factors {
  std::string weight;
  std::string a;          // [rank, in]
  std::string b;          // [out, rank]
  std::string magnitude;  // [out]; "": none
};

// Returns the weight's name in the base's files, if they have it. An adapter
// for the text part of a multimodal model (Gemma 3) names that part's own
// modules, while the whole model's files have them under the text part's name,
// which transformers 4 and 5 write in different places.
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

// An adapter's changes, by the name of the base's weight.
struct Changes {
  std::map<std::string, Factors> factors;
  // The adapter's tensor that replaces it, perhaps with more rows.
  struct Saved {
    std::string name;  // in the adapter
    const TensorEntry* entry = nullptr;
  };
  std::map<std::string, Saved> saved;
  int64_t rows = 0;  // of a larger vocabulary; 0: it stays
  // Of a model with a head of scores, which takes the place of the base's.
  bool scores = false;

  // What a tensor of the merged model was before.
  const TensorEntry& EntryOf(const std::string& name,
                             const SafetensorsReader& base) const {
    const auto found = base.tensors().find(name);
    return found != base.tensors().end() ? found->second
                                         : *saved.at(name).entry;
  }
};

// Whether `name` is a parameter of one of the modules, which are named by any
// of their ends.
bool IsOfModule(absl::string_view name,
                const std::vector<std::string>& modules) {
  return std::any_of(
      modules.begin(), modules.end(), [name](const std::string& module) {
        return absl::StrContains(name, absl::StrCat(module, "."));
      });
}

constexpr char kHead[] = "lm_head.weight";
constexpr char kScores[] = "score.weight";

bool IsEmbeddingOrHead(absl::string_view weight) {
  return absl::EndsWith(weight, kHead) ||
         absl::EndsWith(weight, "embed_tokens.weight");
}

// Notes that the adapter's tensor `name` replaces a weight. Returns false if
// that isn't in the base or has another shape there, except for fewer rows.
bool NoteSaved(const std::string& name, const TensorEntry& entry,
               const SafetensorsReader& base, const AdapterSpec& spec,
               Changes* changes) {
  absl::string_view rest = name;
  const std::string prefix = SavedParameterName("");
  if (!absl::ConsumePrefix(&rest, prefix)) return false;
  const std::string weight = NameInBase(std::string(rest), base);
  // A head that is tied to the embedding: each is named for the other.
  const bool tied = spec.ties && IsEmbeddingOrHead(weight);
  if (!tied && !IsOfModule(rest, spec.modules_to_save)) return false;
  const auto place = base.tensors().find(weight);
  if (place == base.tensors().end() && weight == kScores) {
    changes->scores = true;
    changes->saved[weight] = {name, &entry};
    return true;
  }
  if (place == base.tensors().end()) return tied;
  std::vector<int64_t> shape = entry.shape;
  const std::vector<int64_t>& had = place->second.shape;
  if (shape.size() == 2 && had.size() == 2 && shape[0] > had[0]) {
    changes->rows = std::exchange(shape[0], had[0]);
  }
  if (shape != had) return false;
  changes->saved[weight] = {name, &entry};
  return true;
}

// Checks that each weight that changes exists and fits there.
absl::StatusOr<Changes> ChangesOf(const SafetensorsReader& adapter,
                                  const SafetensorsReader& base,
                                  const AdapterSpec& spec) {
  const std::string& adapter_folder = spec.pretrained;
  const int64_t rank = spec.rank;
  const auto misfit = [&](const std::string& module, const std::string& how) {
    return absl::FailedPreconditionError(
        absl::StrCat(adapter_folder, " is an adapter for another model: '",
                     module, "' ", how));
  };
  Changes changes;
  std::map<std::string, Factors>& factors = changes.factors;
  for (const auto& [name, entry] : adapter.tensors()) {
    const absl::optional<AdapterName> parts = ParseAdapterName(name);
    if (!parts.has_value() && !spec.modules_to_save.empty()) {
      if (IsSecondCopy(name)) continue;
      if (NoteSaved(name, entry, base, spec, &changes)) continue;
      return misfit(name,
                    absl::StrCat("of shape [", absl::StrJoin(entry.shape, ", "),
                                 "] replaces nothing in the base"));
    }
    if (!parts.has_value()) {
      return absl::UnimplementedError(
          absl::StrCat(adapter_folder, "/", kAdapterWeights, ": '", name,
                       "' is neither a lora_A, a lora_B nor a "
                       "lora_magnitude_vector of a module"));
    }
    const std::string weight = parts->module + ".weight";
    Factors& found = factors[NameInBase(weight, base)];
    found.weight = weight;
    (parts->is_magnitude ? found.magnitude
     : parts->is_b       ? found.b
                         : found.a) = name;
  }
  for (const auto& [weight, found] : factors) {
    const std::string module = found.weight.substr(0, found.weight.rfind('.'));
    if (found.a.empty() || found.b.empty()) {
      return absl::DataLossError(
          absl::StrCat(adapter_folder, "/", kAdapterWeights, ": '", module,
                       "' has no ", found.a.empty() ? "lora_A" : "lora_B"));
    }
    if (found.magnitude.empty() == spec.dora) {
      return absl::DataLossError(absl::StrCat(
          adapter_folder, "/", kAdapterWeights, ": '", module, "' has ",
          spec.dora ? "no" : "a",
          " lora_magnitude_vector, and adapter_config.json's use_dora is ",
          spec.dora ? "true" : "false"));
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
            std::vector<int64_t>{shape[0], rank} ||
        (spec.dora && adapter.tensors().at(found.magnitude).shape !=
                          std::vector<int64_t>{shape[0]})) {
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
  if (changes.rows == 0) return changes;
  if (!PathExists(adapter_folder + "/tokenizer.json")) {
    return absl::FailedPreconditionError(absl::StrCat(
        adapter_folder, " has ", changes.rows,
        " tokens, more than the base's tokenizer, and no tokenizer.json of its "
        "own: put back the one that it was saved with"));
  }
  // Both or none: a model has as many scores as embeddings.
  for (const auto& [name, entry] : base.tensors()) {
    if (!IsEmbeddingOrHead(name) ||
        (changes.scores && absl::EndsWith(name, kHead))) {
      continue;
    }
    const auto saved = changes.saved.find(name);
    if (saved == changes.saved.end() ||
        saved->second.entry->shape[0] != changes.rows) {
      return absl::FailedPreconditionError(absl::StrCat(
          adapter_folder, " has ", changes.rows, " tokens, and no '", name,
          "' of as many rows: train it with modules_to_save of both the "
          "embedding and the head"));
    }
  }
  return changes;
}

// Whether the head of the model in `folder` is its embedding.
bool IsTied(const std::string& folder, const SafetensorsReader& weights) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/config.json");
  const auto json = text.ok() ? ParseJson<nlohmann::json>(*text)
                              : nlohmann::json(nlohmann::json::value_t::object);
  const bool otherwise = weights.tensors().count(kHead) == 0;
  const auto found = json.find("tie_word_embeddings");
  return found != json.end() && found->is_boolean() ? found->get<bool>()
                                                    : otherwise;
}

// The error of rounding merged weights to the file's dtype.
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

  // An adapted module's weight, as the adapter was trained on it.
  absl::StatusOr<at::Tensor> ReadAdapted(const std::string& name) const {
    if (quantize_ == Quantize::kFolders || folder_is_quantised()) {
      return ReadTensor(*folder_, name);
    }
    const TensorEntry& entry = folder_->tensors().at(name);
    const std::unique_ptr<PackedMatrix> matrix = QuantizeMatrix(
        quantize_, entry.shape[0], entry.shape[1],
        [this, name](int64_t from, int64_t n, float* values) {
          return folder_->ReadFloats(name, from, n, values);
        },
        name);
    at::Tensor tensor = at::empty(entry.shape, at::kFloat);
    CAPSTAN_RETURN_IF_ERROR(
        matrix->ReadValues(0, entry.numel, tensor.mutable_data_ptr<float>()));
    return tensor;
  }

 private:
  const std::unique_ptr<SafetensorsReader> folder_;
  const Quantize quantize_;
};

// Writes one of the base's files, merged.
absl::Status WriteMerged(const std::string& path,
                         const std::vector<std::string>& names,
                         const Base& whole, const SafetensorsReader& adapter,
                         const Changes& changes, double scale,
                         Rounding* rounding) {
  const SafetensorsReader& base = whole.folder();
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                           SafetensorsWriter::Create(path));
  for (const std::string& name : names) {
    const auto saved = changes.saved.find(name);
    const TensorEntry& entry = changes.EntryOf(name, base);
    writer->Declare(name, entry.dtype,
                    saved == changes.saved.end() ? entry.shape
                                                 : saved->second.entry->shape);
  }
  for (const std::string& name : names) {
    const TensorEntry& entry = changes.EntryOf(name, base);
    const auto saved = changes.saved.find(name);
    const auto found = changes.factors.find(name);
    at::Tensor weight;
    if (saved != changes.saved.end()) {
      CAPSTAN_ASSIGN_OR_RETURN(weight, ReadTensor(adapter, saved->second.name));
    } else if (found != changes.factors.end()) {
      CAPSTAN_ASSIGN_OR_RETURN(weight, whole.ReadAdapted(name));
      CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor a,
                               ReadTensor(adapter, found->second.a));
      CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor b,
                               ReadTensor(adapter, found->second.b));
      weight.add_(at::mm(b, a).mul_(scale));
      if (!found->second.magnitude.empty()) {
        CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor magnitude,
                                 ReadTensor(adapter, found->second.magnitude));
        // "DoRA" (Liu et al., 2024, equation 5); a row of zeros stays one.
        const at::Tensor norms = at::norm(weight, 2, {1}, /*keepdim=*/false);
        weight.mul_(
            magnitude.div(norms.masked_fill(norms.eq(0.0), 1.0)).unsqueeze(1));
      }
    } else if (entry.data == nullptr) {
      CAPSTAN_ASSIGN_OR_RETURN(weight, ReadTensor(base, name));
    } else {
      CAPSTAN_RETURN_IF_ERROR(writer->Append(entry.data, entry.bytes));
      continue;
    }
    const at::Tensor stored = Rounded(weight, entry.dtype, rounding);
    CAPSTAN_RETURN_IF_ERROR(
        writer->Append(stored.const_data_ptr(), stored.nbytes()));
  }
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  return writer->Close();
}

// Writes the index of the shards, unless the only one needs none.
absl::Status WriteIndex(
    const SafetensorsReader& base, const Changes& changes,
    const std::map<std::string, std::vector<std::string>>& files,
    const std::string& to) {
  if (files.size() == 1 && files.begin()->first == "model.safetensors") {
    return absl::OkStatus();
  }
  int64_t bytes = 0;
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (const auto& [file, names] : files) {
    for (const std::string& name : names) {
      map[name] = file;
      const TensorEntry& entry = changes.EntryOf(name, base);
      const auto saved = changes.saved.find(name);
      bytes += saved == changes.saved.end()
                   ? entry.bytes
                   : saved->second.entry->numel *
                         static_cast<int64_t>(c10::elementSize(entry.dtype));
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", bytes}}},
                                        {"weight_map", map}};
  return WriteWholeFile(to + "/model.safetensors.index.json",
                        index.dump(2) + "\n");
}

using Config = nlohmann::ordered_json;

absl::Status EditConfig(const std::string& folder,
                        const std::function<void(Config& json)>& edit) {
  const std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(Config json, ParseObject(path, text));
  const Config before = json;
  edit(json);
  return json == before ? absl::OkStatus()
                        : WriteWholeFile(path, json.dump(2) + "\n");
}

// Makes the model one of transformers' sequence classification with one label.
void SetScores(Config& json) {
  Config& classes = json["architectures"];
  if (classes.is_array() && !classes.empty() && classes[0].is_string()) {
    const std::string name = classes[0];
    classes[0] = name.substr(0, name.find("For")) + "ForSequenceClassification";
  }
  json["num_labels"] = 1;
  json["id2label"] = {{"0", "LABEL_0"}};
  json["label2id"] = {{"LABEL_0", 0}};
}

// Sets the size of a larger vocabulary, also for the text part of a multimodal
// model.
void SetVocabulary(Config& json, int64_t rows) {
  const auto part = json.find("text_config");
  const bool has_part = part != json.end() && part->is_object();
  if (has_part) (*part)["vocab_size"] = rows;
  if (!has_part || json.contains("vocab_size")) json["vocab_size"] = rows;
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

absl::Status WriteCard(const AdapterMerge& merge, bool scores,
                       const std::string& to) {
  return WriteWholeFile(
      to + "/README.md",
      absl::StrCat("---\nlibrary_name: transformers\npipeline_tag: text-",
                   scores ? "classification" : "generation",
                   "\ntags:\n- capstan\n", BaseModelMetadata(merge.base),
                   "---\n\n# ", ModelName(merge.output), "\n\n`",
                   ModelName(merge.base), "` with the LoRA adapter `",
                   ModelName(merge.adapter),
                   "` merged into its weights by `trainer merge`.\n"));
}

// Merges into the folder `to`. Returns a note for the user.
absl::StatusOr<std::string> Merge(const AdapterMerge& merge,
                                  const std::string& to) {
  const at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const AdapterSpec spec,
                           ReadAdapterConfig(merge.adapter));
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsReader> opened,
                           OpenWeights(merge.base));
  const Base whole(std::move(opened), spec.quantize);
  const SafetensorsReader* const base = &whole.folder();
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> adapter,
                           SafetensorsReader::Open(absl::StrCat(
                               merge.adapter, "/", kAdapterWeights)));
  CAPSTAN_ASSIGN_OR_RETURN(const Changes changes,
                           ChangesOf(*adapter, *base, spec));
  const bool apart =
      std::any_of(changes.saved.begin(), changes.saved.end(),
                  [](const auto& one) { return IsEmbeddingOrHead(one.first); });
  if (apart && !spec.ties && IsTied(merge.base, *base)) {
    return absl::UnimplementedError(absl::StrCat(
        merge.adapter,
        "/adapter_config.json: the base's embedding is its head, too, and "
        "ensure_weight_tying isn't set: embedding and head that were trained "
        "apart are not implemented"));
  }
  std::string note = NoteWithoutBase(merge.adapter);
  if (!merge.other_base) {
    CAPSTAN_RETURN_IF_ERROR(CheckBaseWeights(merge.adapter, merge.base));
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, entry] : base->tensors()) {
    if (changes.scores && absl::EndsWith(name, kHead)) continue;
    files[fs::path(entry.file).filename().string()].push_back(name);
  }
  if (changes.scores) files.rbegin()->second.push_back(kScores);
  Rounding rounding;
  CAPSTAN_RETURN_IF_ERROR(RemoveTree(to));  // left by a killed run
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(to));
  for (const auto& [file, names] : files) {
    CAPSTAN_RETURN_IF_ERROR(WriteMerged(absl::StrCat(to, "/", file), names,
                                        whole, *adapter, changes, spec.scale(),
                                        &rounding));
  }
  CAPSTAN_RETURN_IF_ERROR(WriteIndex(*base, changes, files, to));
  CAPSTAN_RETURN_IF_ERROR(WriteCard(merge, changes.scores, to));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string copied, CopyOtherFiles(merge, to));
  absl::StrAppend(&note, note.empty() || copied.empty() ? "" : "\n", copied);
  if (changes.scores || changes.rows > 0 || whole.quantised()) {
    CAPSTAN_RETURN_IF_ERROR(EditConfig(to, [&](Config& json) {
      if (changes.scores) SetScores(json);
      if (changes.rows > 0) SetVocabulary(json, changes.rows);
      // The merged weights aren't.
      if (whole.quantised()) json.erase("quantization_config");
    }));
  }
  if (!whole.quantised()) return note;
  return absl::StrCat(
      note, note.empty() ? "" : "\n",
      absl::StrFormat(
          "the base is what %s of it, as in training; rounding the "
          "merged weights to the file's dtype moved them by %.1e of their "
          "size (root mean square), and none by more than %.1e of its "
          "matrix's largest",
          spec.quantize == Quantize::kFp8 ? "8 bits keep" : "NF4 keeps",
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
