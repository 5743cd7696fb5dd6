// SPDX-License-Identifier: Apache-2.0
#include "desk/convert/weight_source.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

// Dicts of weights in checkpoints, the likelier first.
constexpr absl::string_view kWeightKeys[] = {
    "model_state_dict", "state_dict", "model", "module", "model_state", "net",
};

size_t TensorsIn(const PickleValue& dict) {
  size_t tensors = 0;
  for (const auto& [key, value] : dict.entries()) {
    tensors += TorchFile::IsTensor(value);
  }
  return tensors;
}

// The keys of a dict's dicts, for messages.
std::string DictsIn(const PickleValue& dict) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : dict.entries()) {
    if (key.is(Kind::kText) && value.is(Kind::kDict)) {
      keys.push_back(absl::CHexEscape(key.text));
    }
  }
  return keys.empty()
             ? "it has no dicts"
             : absl::StrCat("its dicts are ", absl::StrJoin(keys, ", "));
}

// The dict of weights, and the key that leads to it ("": the root).
struct Weights {
  const PickleValue* dict = nullptr;
  std::string key;
};

absl::StatusOr<Weights> WeightsByKey(const PickleValue& root,
                                     const std::string& key) {
  const PickleValue* value = &root;
  for (const absl::string_view part : absl::StrSplit(key, '.')) {
    const PickleValue* const inner = &value->At(part);
    if (inner->is(Kind::kNone)) {
      return absl::NotFoundError(absl::StrCat("--key=", key, ": there is no '",
                                              part, "' in it; ",
                                              DictsIn(*value)));
    }
    value = inner;
  }
  if (TensorsIn(*value) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--key=", key, ": it has no tensors by name; ", DictsIn(*value)));
  }
  return Weights{value, key};
}

absl::StatusOr<Weights> FindWeights(const PickleValue& root) {
  if (TensorsIn(root) > 0) return Weights{&root, ""};
  for (const absl::string_view key : kWeightKeys) {
    const PickleValue& inner = root.At(key);
    if (TensorsIn(inner) > 0) return Weights{&inner, std::string(key)};
  }
  Weights only;
  int dicts = 0;
  std::set<const PickleValue*> seen;  // a dict may be there many times
  for (const auto& [key, value] : root.entries()) {
    if (!key.is(Kind::kText) || !seen.insert(&value).second) continue;
    if (TensorsIn(value) == 0) continue;
    only = {&value, std::string(key.text)};
    ++dicts;
  }
  if (dicts == 1) return only;
  return absl::InvalidArgumentError(absl::StrCat(
      dicts == 0 ? "has no dict of tensors by name"
                 : "has several dicts of tensors by name",
      "; name the one of the weights by --key=KEY, --key=KEY.KEY further in: ",
      DictsIn(root)));
}

const char* WhyLeftOut(const PickleValue& other) {
  if (TensorsIn(other) > 0) return "tensors of another dict (--key)";
  return other.At("state").is(Kind::kNone)
             ? "not weights"
             : "an optimizer's state, by number and not by name";
}

// What is beside the weights.
void NoteOthers(const PickleValue& root, const Weights& weights,
                WeightSource* source) {
  if (weights.dict == &root) return;
  // A dict may be there many times.
  std::map<const PickleValue*, const char*> reasons;
  for (const auto& [key, value] : root.entries()) {
    if (absl::StartsWith(weights.key + ".", absl::StrCat(key.text, "."))) {
      continue;
    }
    const char*& why = reasons[&value];
    if (why == nullptr) why = WhyLeftOut(value);
    source->left_out.emplace_back(absl::CHexEscape(key.text), why);
  }
}

absl::Status AddFile(const std::string& path, const std::string& key,
                     WeightSource* source) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto file, OpenTorchFile(path, source));
  absl::StatusOr<Weights> weights =
      key.empty() ? FindWeights(file->root()) : WeightsByKey(file->root(), key);
  if (!weights.ok()) return Annotate(weights.status(), path);
  if (key.empty() && !weights->key.empty()) {
    source->notes.push_back(absl::StrCat("the weights are those of the key '",
                                         absl::CHexEscape(weights->key),
                                         "' (--key names another)"));
  }
  NoteOthers(file->root(), *weights, source);
  for (const auto& [key, value] : weights->dict->entries()) {
    const std::string shown = absl::CHexEscape(key.text);
    if (!key.is(Kind::kText) || !TorchFile::IsTensor(value)) {
      source->left_out.emplace_back(shown, "not a tensor");
      continue;
    }
    absl::StatusOr<TensorView> tensor = file->Tensor(value);
    if (tensor.ok()) {
      source->weights.push_back({std::string(key.text), *std::move(tensor)});
    } else if (absl::IsUnimplemented(tensor.status())) {
      source->left_out.emplace_back(shown, tensor.status().message());
    } else {
      return Annotate(tensor.status(), absl::StrCat(path, ": '", shown, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status AddIndex(const std::string& path, const std::string& key,
                      WeightSource* source) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const nlohmann::ordered_json json,
                           ParseObject(path, text));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has no weight_map, so isn't an index of weights"));
  }
  std::set<std::string> files, wanted;
  for (const auto& [name, file] : map->items()) {
    const std::string plain = file.is_string() ? file.get<std::string>() : "";
    if (plain.empty() || fs::path(plain).filename() != plain || plain == "..") {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": weight_map must name files beside it, has ", file.dump()));
    }
    files.insert(plain);
    wanted.insert(name);
  }
  for (const std::string& file : files) {
    CAPSTAN_RETURN_IF_ERROR(
        AddFile((fs::path(path).parent_path() / file).string(), key, source));
  }
  for (const NamedTensor& weight : source->weights) wanted.erase(weight.name);
  for (const auto& [name, why] : source->left_out) wanted.erase(name);
  if (wanted.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": no file has '", *wanted.begin(),
                   "', which it lists: copy the shards again"));
}

// Takes the names of wrappers out of a weight's: torch.compile's and those of
// FSDP and activation checkpointing anywhere, DistributedDataParallel's where
// all weights have it.
absl::Status RemoveWrappers(WeightSource* source) {
  static constexpr absl::string_view kParallel = "module.";
  const bool parallel =
      std::all_of(source->weights.begin(), source->weights.end(),
                  [&](const NamedTensor& weight) {
                    return absl::StartsWith(weight.name, kParallel);
                  });
  const auto plain = [parallel](const std::string& name) {
    absl::string_view bare = name;
    if (parallel) absl::ConsumePrefix(&bare, kParallel);
    return absl::StrReplaceAll(bare, {{"_orig_mod.", ""},
                                      {"_fsdp_wrapped_module.", ""},
                                      {"_checkpoint_wrapped_module.", ""}});
  };
  std::set<std::string> names;
  size_t changed = 0;
  for (NamedTensor& weight : source->weights) {
    const std::string name = plain(weight.name);
    changed += name != weight.name;
    weight.name = name;
    if (!names.insert(name).second || name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("two of its tensors are '", absl::CHexEscape(name),
                       "' (without the prefixes of wrappers)"));
    }
  }
  for (auto& [kind, tensors] : source->moments) {
    std::map<std::string, TensorView> renamed;
    for (auto& [name, tensor] : tensors) {
      renamed.emplace(plain(name), std::move(tensor));
    }
    tensors = std::move(renamed);
  }
  if (changed > 0) {
    source->notes.push_back(absl::StrCat(
        "prefixes of wrappers (module., _orig_mod., ..) are removed from ",
        changed, changed == 1 ? " name" : " names"));
  }
  return absl::OkStatus();
}

// The folder that DeepSpeed's file `latest` in `folder` names; "" if there is
// none.
std::string LatestZeroFolder(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/latest", 1 << 10);
  if (!text.ok()) return "";
  const std::string tag(absl::StripAsciiWhitespace(*text));
  if (tag.empty() || fs::path(tag).filename() != tag) return "";
  const std::string path = absl::StrCat(folder, "/", tag);
  return IsZeroFolder(path) ? path : "";
}

absl::Status ReadFolder(const std::string& folder, const std::string& key,
                        WeightSource* source) {
  const std::string zero =
      IsZeroFolder(folder) ? folder : LatestZeroFolder(folder);
  if (!zero.empty()) {
    if (!key.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--key=", key, ": ", zero,
          " is DeepSpeed's, which has the weights of one model: leave --key "
          "out"));
    }
    if (zero == folder) {
      source->folder = fs::path(folder).parent_path().string();
    }
    return ReadZeroFolder(zero, source);
  }
  // Accelerate keeps it below the folder that it was told.
  for (const char* inner : {"", "/pytorch_model_fsdp_0"}) {
    if (IsDistributedFolder(folder + inner)) {
      return ReadDistributedFolder(folder + inner, key, source);
    }
  }
  const std::string index = folder + "/pytorch_model.bin.index.json";
  source->format = "files of torch.save's";
  if (PathExists(index)) return AddIndex(index, key, source);
  for (const char* name : {"/pytorch_model.bin", "/adapter_model.bin"}) {
    if (PathExists(folder + name)) return AddFile(folder + name, key, source);
  }
  return absl::NotFoundError(absl::StrCat(
      folder,
      " has none of pytorch_model.bin, its index, DeepSpeed's "
      "*_optim_states.pt and torch.distributed.checkpoint's .metadata: name "
      "the file or folder of the weights"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const TorchFile>> OpenTorchFile(
    const std::string& path, WeightSource* source) {
  CAPSTAN_ASSIGN_OR_RETURN(auto mapped, MappedFile::Open(path));
  absl::StatusOr<std::unique_ptr<const TorchFile>> file =
      TorchFile::Open(mapped->bytes());
  if (!file.ok()) return Annotate(file.status(), path);
  CAPSTAN_RETURN_IF_ERROR(mapped->Check());
  source->files.push_back(std::move(mapped));
  return file;
}

absl::StatusOr<WeightSource> OpenWeightSource(const std::string& input,
                                              const std::string& key) {
  std::string path = input;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  WeightSource source;
  source.folder = IsFolder(path) ? path : fs::path(path).parent_path().string();
  source.format = "a file of torch.save's";
  if (IsFolder(path)) {
    CAPSTAN_RETURN_IF_ERROR(ReadFolder(path, key, &source));
  } else if (absl::EndsWith(path, ".index.json")) {
    CAPSTAN_RETURN_IF_ERROR(AddIndex(path, key, &source));
  } else if (absl::EndsWith(path, ".safetensors")) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is safetensors already: name its folder as model.pretrained"));
  } else {
    CAPSTAN_RETURN_IF_ERROR(AddFile(path, key, &source));
  }
  const absl::Status names = RemoveWrappers(&source);
  if (!names.ok()) return Annotate(names, path);
  if (source.weights.empty()) {
    std::map<std::string, std::string> examples;  // names by reason
    for (const auto& [name, why] : source.left_out) examples.emplace(why, name);
    std::string error =
        absl::StrCat(path, ": has no tensors that can be converted");
    for (const auto& [why, name] : examples) {
      absl::StrAppend(&error, "; ", name, ": ", why);
    }
    return absl::InvalidArgumentError(error);
  }
  // Checksums have been compared: that isn't memory that is needed.
  for (const auto& file : source.files) {
    ForgetMapped(file->bytes().data(), file->bytes().size());
  }
  return source;
}

}  // namespace capstan
