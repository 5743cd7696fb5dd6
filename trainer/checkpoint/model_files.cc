// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/model_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Limit on names in a note's single line.
constexpr size_t kMostNamed = 12;

bool IsWeights(absl::string_view name) {
  static constexpr absl::string_view kEnds[] = {
      ".safetensors", ".bin",  ".pt",     ".pth",       ".ckpt",    ".gguf",
      ".ggml",        ".onnx", ".h5",     ".onnx_data", ".msgpack", ".npz",
      ".index.json",  ".pkl",  ".tflite", ".mlmodel",   ".pdparams"};
  return std::any_of(
      std::begin(kEnds), std::end(kEnds),
      [name](absl::string_view end) { return absl::EndsWith(name, end); });
}

// Whether `name` is a file that a trainer, such as this one, leaves of a run,
// or one that doesn't apply to another folder.
bool IsLeftover(const std::string& name) {
  static const auto* const names = new std::set<std::string>{
      "README.md",          "adapter_config.json", "all_results.json",
      "capstan.json",       "eval_results.json",   "latest",
      "loss_curve.svg",     "train_results.json",  "trainer_log.jsonl",
      "trainer_state.json", "zero_to_fp32.py",     "zero_to_torch.py"};
  return names->count(name) > 0 ||
         absl::StartsWith(name, "events.out.tfevents");
}

// Strips a trailing slash.
fs::path PlainPath(const std::string& folder) {
  return fs::path(folder + "/").lexically_normal().parent_path();
}

// Files that every tool reads, wherever a symlink leads: a folder may consist
// of symlinks.
bool IsReadAnyway(const std::string& name) {
  return name == "config.json" || name == "generation_config.json" ||
         IsTokenizerFile(name);
}

// The resolved path, if it is a file within `folder` (canonical) or, for a
// snapshot in Hugging Face's cache, among its repository's blobs; else empty.
fs::path FileWithin(const fs::path& folder, const fs::path& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (error || !fs::is_regular_file(real, error)) return {};
  const auto lies_in = [&real](const fs::path& parent) {
    return absl::StartsWith(real.string(), parent.string() + "/");
  };
  if (lies_in(folder)) return real;
  const fs::path snapshots = folder.parent_path();
  if (snapshots.filename() == "snapshots" &&
      lies_in(snapshots.parent_path() / "blobs")) {
    return real;
  }
  return {};
}

// config.json's auto_map, or an empty object.
Json AutoMap(const std::string& folder) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/config.json");
  if (!text.ok()) return Json::object();
  const Json json = ParseJson<Json>(*text);
  if (!json.is_object() || !json.contains("auto_map") ||
      !json["auto_map"].is_object()) {
    return Json::object();
  }
  return json["auto_map"];
}

// The folder's modules named in config.json's auto_map, as files
// ("modeling_llada.py"). Those of another repository ("org/name--x.Y") stay on
// the hub.
std::set<std::string> AutoMapFiles(const std::string& folder) {
  std::set<std::string> files;
  const auto add = [&files](const Json& value) {
    if (!value.is_string()) return;
    const std::string reference = value;
    const size_t dot = reference.rfind('.');
    if (dot == std::string::npos || absl::StrContains(reference, "--")) return;
    files.insert(reference.substr(0, dot) + ".py");
  };
  const Json map = AutoMap(folder);
  for (const auto& [key, value] : map.items()) {
    if (!value.is_array()) {
      add(value);
      continue;
    }
    for (const Json& one : value) add(one);
  }
  return files;
}

// Copies files and records which.
class Copier {
 public:
  Copier(const fs::path& from, const std::string& to) : from_(from), to_(to) {}

  // `name` may have folders. Fails only if `to` can't be written.
  absl::Status Copy(const std::string& name) {
    const std::string target = absl::StrCat(to_, "/", name);
    if (PathExists(target)) return absl::OkStatus();
    fs::path real = FileWithin(from_, from_ / name);
    std::error_code unknown;
    if (real.empty() && IsReadAnyway(name) &&
        fs::is_regular_file(from_ / name, unknown)) {
      real = from_ / name;
    }
    if (real.empty()) return Leave(name, "not a file of the folder's own");
    std::error_code error;
    const auto bytes = static_cast<int64_t>(fs::file_size(real, error));
    if (!error && bytes > kMostModelFileBytes) {
      return Leave(name, absl::StrCat("larger than ", kMostModelFileBytes >> 20,
                                      " MiB"));
    }
    if (!error && bytes > kMostModelFilesBytes - bytes_) {
      return Leave(name, absl::StrCat("together more than ",
                                      kMostModelFilesBytes >> 20, " MiB"));
    }
    const absl::StatusOr<std::string> text = ReadWholeFile(real.string());
    if (!text.ok()) return Leave(name, "can't be read");
    bytes_ += static_cast<int64_t>(text->size());
    if (absl::StrContains(name, '/')) {
      CAPSTAN_RETURN_IF_ERROR(
          MakeFolder(fs::path(target).parent_path().string()));
    }
    CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(target, *text));
    files_.copied.push_back(name);
    return absl::OkStatus();
  }

  absl::Status Leave(const std::string& name, const std::string& why) {
    files_.left.push_back(absl::StrCat(name, " (", why, ")"));
    return absl::OkStatus();
  }

  const ModelFiles& files() const { return files_; }

 private:
  const fs::path from_;
  const std::string to_;
  int64_t bytes_ = 0;
  ModelFiles files_;
};

// Names of the folder's files to copy.
std::set<std::string> FilesToCopy(const fs::path& folder, bool own_tokenizer) {
  std::set<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::error_code unknown;
    if (name[0] == '.' || fs::is_directory(it->path(), unknown) ||
        IsWeights(name) || IsLeftover(name) ||
        (own_tokenizer && IsTokenizerFile(name))) {
      continue;
    }
    names.insert(name);
  }
  return names;
}

std::string Named(const std::vector<std::string>& names) {
  if (names.size() <= kMostNamed) return absl::StrJoin(names, ", ");
  return absl::StrCat(
      absl::StrJoin(names.begin(), names.begin() + kMostNamed, ", "), " and ",
      names.size() - kMostNamed, " more");
}

}  // namespace

absl::StatusOr<ModelFiles> CopyModelFiles(const std::string& from,
                                          const std::string& to,
                                          bool own_tokenizer) {
  std::error_code error;
  const fs::path folder = fs::canonical(from, error);
  if (error || !fs::is_directory(folder, error)) return ModelFiles();
  Copier copier(folder, to);
  for (const std::string& name : FilesToCopy(folder, own_tokenizer)) {
    CAPSTAN_RETURN_IF_ERROR(copier.Copy(name));
  }
  for (const std::string& name : AutoMapFiles(to)) {
    const fs::path path(name);
    const bool inside =
        path.is_relative() &&
        std::find(path.begin(), path.end(), fs::path("..")) == path.end();
    absl::Status status;
    if (!inside) {
      status = copier.Leave(name, "auto_map points out of the folder");
    } else if (!fs::exists(folder / path, error)) {
      status = copier.Leave(name, "auto_map names it, but it isn't there");
    } else if (path.has_parent_path()) {
      status = copier.Copy(name);
    }
    CAPSTAN_RETURN_IF_ERROR(status);
  }
  return copier.files();
}

std::string ModelFilesNote(const std::string& from, const std::string& to,
                           const ModelFiles& files) {
  if (files.copied.empty() && files.left.empty()) return "";
  std::string note = absl::StrCat(PlainPath(to).filename().string(), "/");
  if (!files.copied.empty()) {
    absl::StrAppend(&note, " also has ", Named(files.copied), " of ",
                    ModelName(from));
  }
  if (!files.left.empty()) {
    absl::StrAppend(&note, files.copied.empty() ? "" : ";", " without ",
                    Named(files.left), " of ", ModelName(from));
  }
  return note;
}

std::string AutoClass(const std::string& folder) {
  const Json map = AutoMap(folder);
  for (const char* name : {"AutoModelForCausalLM", "AutoModel"}) {
    if (map.contains(name)) return name;
  }
  return "";
}

std::string HubName(const std::string& folder) {
  const fs::path path = PlainPath(folder);
  if (path.parent_path().filename() != "snapshots") return "";
  const std::string repository =
      path.parent_path().parent_path().filename().string();
  absl::string_view name = repository;
  if (!absl::ConsumePrefix(&name, "models--")) return "";
  const size_t split = name.find("--");
  return split == absl::string_view::npos
             ? std::string(name)
             : absl::StrCat(name.substr(0, split), "/", name.substr(split + 2));
}

std::string ModelName(const std::string& folder) {
  const std::string hub = HubName(folder);
  if (!hub.empty()) return hub;
  const fs::path path = PlainPath(folder);
  if (path.filename() != "final" || !path.has_parent_path()) {
    return path.filename().string();
  }
  // runs/NAME/TIME/final
  const fs::path run = path.parent_path();
  const std::string name = run.filename().string();
  const bool is_time =
      name == "latest" || (!name.empty() && absl::ascii_isdigit(name[0]));
  const std::string named =
      is_time ? run.parent_path().filename().string() : name;
  return named.empty() ? "final" : named;
}

std::string PublicPlace(const std::string& folder) {
  const std::string hub = HubName(folder);
  return hub.empty() ? absl::StrCat("../", ModelName(folder)) : hub;
}

std::string BaseModelMetadata(const std::string& folder) {
  const std::string hub = HubName(folder);
  return hub.empty() ? absl::StrCat("# Base model: ", ModelName(folder), "\n")
                     : absl::StrCat("base_model: ", hub, "\n");
}

bool IsTokenizerFile(const std::string& name) {
  static const auto* const names =
      new std::set<std::string>{"added_tokens.json",
                                "chat_template.jinja",
                                "chat_template.json",
                                "merges.txt",
                                "sentencepiece.bpe.model",
                                "special_tokens_map.json",
                                "spiece.model",
                                "tokenizer.json",
                                "tokenizer.model",
                                "tokenizer_config.json",
                                "vocab.json",
                                "vocab.txt"};
  return names->count(name) > 0;
}

}  // namespace capstan
