// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/import/draft.h"

namespace capstan::import {

const std::vector<const Peer*>& Peers() {
  static const std::vector<const Peer*>* const peers =
      new std::vector<const Peer*>{
          &kPeft, &kTorchtune,    &kAxolotl,   &kSftPlay,   &kLlamaFactory,
          &kTrl,  &kTransformers, &kDeepSpeed, &kAccelerate};
  return *peers;
}

namespace {

constexpr size_t kMostFiles = 16;
constexpr char kLauncher[] = "launcher.";

struct Program {
  const char* name;  // part of a command's program
  const Peer* peer;
};
constexpr Program kPrograms[] = {{"llamafactory", &kLlamaFactory},
                                 {"axolotl", &kAxolotl},
                                 {"tune", &kTorchtune},
                                 {"run_clm", &kTransformers},
                                 {"run_mlm", &kTransformers},
                                 {"run_plm", &kTransformers},
                                 {"trl", &kTrl},
                                 {"sft", &kTrl},
                                 {"dpo", &kTrl},
                                 {"grpo", &kTrl},
                                 {"kto", &kTrl},
                                 {"orpo", &kTrl},
                                 {"rloo", &kTrl},
                                 {"reward", &kTrl}};

bool HasSign(const Peer& peer, const Settings& settings) {
  for (const Setting& setting : settings.settings) {
    for (const char* const sign : peer.signs) {
      if (absl::EqualsIgnoreCase(setting.key, sign) ||
          absl::StartsWithIgnoreCase(setting.key, absl::StrCat(sign, ".")) ||
          absl::StartsWithIgnoreCase(setting.key, absl::StrCat(sign, "["))) {
        return true;
      }
    }
  }
  return false;
}

// Null if it isn't known.
const Peer* PeerOfProgram(const std::string& name) {
  for (const Program& program : kPrograms) {
    if (absl::StartsWith(name, program.name)) return program.peer;
  }
  return nullptr;
}

// The signs of a launcher's files go first: none of theirs is another's.
const Peer* PeerOf(const Settings& settings) {
  if (const Peer* const peer = PeerOfProgram(settings.program)) return peer;
  for (const Peer* const peer : {&kDeepSpeed, &kAccelerate}) {
    if (HasSign(*peer, settings)) return peer;
  }
  for (const Peer* const peer : Peers()) {
    if (HasSign(*peer, settings)) return peer;
  }
  return settings.program.empty() ? nullptr : &kTransformers;
}

// OmegaConf's "${output_dir}".
void ReplaceReferences(Settings* settings) {
  for (Setting& setting : settings->settings) {
    const size_t start = setting.value.find("${");
    const size_t end = setting.value.find('}', start);
    if (start == std::string::npos || end == std::string::npos) continue;
    const std::string name = setting.value.substr(start + 2, end - start - 2);
    for (const Setting& other : settings->settings) {
      if (other.key != name || absl::StrContains(other.value, "${") ||
          other.value.size() > 4096) {
        continue;
      }
      setting.value.replace(start, end + 1 - start, other.value);
      break;
    }
  }
}

struct ReadFile {
  Settings settings;
  const Peer* peer;
};

class Importer {
 public:
  explicit Importer(Draft* draft) : draft_(draft) {}

  // With the files that it names.
  absl::Status Read(const std::string& path) {
    if (files_.size() >= kMostFiles) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": ", kMostFiles, " files have been read: one names itself"));
    }
    CAPSTAN_ASSIGN_OR_RETURN(Settings settings, ReadSettings(path));
    const Peer* const peer = PeerOf(settings);
    if (peer == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          ": isn't of a program that is known here: accelerate, DeepSpeed, "
          "TRL, transformers, axolotl, LLaMA-Factory, torchtune, SFT-Play, "
          "PEFT"));
    }
    ReplaceReferences(&settings);
    if (!settings.program.empty()) draft_->program = settings.program;
    if (HasOwnOptions(settings) && !PeerOfProgram(settings.program)) {
      draft_->Note(Effect::kDiffers, settings.program, "", "",
                   absl::StrCat("isn't known here: its options, and what it "
                                "leaves out, are taken for those of ",
                                peer->name));
    }
    const std::string folder =
        std::filesystem::absolute(settings.path).parent_path().string();
    draft_->bases.push_back(folder);
    draft_->files.push_back(settings.path);
    if (peer == &kPeft) {
      settings.settings.push_back({"adapter_folder", folder});
    }
    std::vector<Setting> named;
    for (const Setting& setting : settings.settings) {
      if (NamesFile(setting) || NamesAdapter(setting.key)) {
        named.push_back(setting);
      }
    }
    files_.push_back({std::move(settings), peer});
    for (const Setting& setting : named) {
      std::vector<std::string> names = setting.items;
      if (!setting.is_list) names = {setting.value};
      // Each overrides those before it; what is read first stays.
      for (auto name = names.rbegin(); name != names.rend(); ++name) {
        CAPSTAN_RETURN_IF_ERROR(ReadNamed(setting.key, *name, path));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    // A command before the file that it names, a trainer before its launcher.
    std::stable_sort(files_.begin(), files_.end(),
                     [](const ReadFile& a, const ReadFile& b) {
                       return Rank(a.peer) < Rank(b.peer);
                     });
    std::set<std::string> applied;  // a file may be given and be named, too
    for (const ReadFile& file : files_) {
      std::error_code error;
      const std::string path =
          std::filesystem::weakly_canonical(file.settings.path, error).string();
      if (applied.insert(path).second) Apply(file);
    }
    for (const Peer* const peer : Peers()) {
      if (draft_->peers.count(peer->name) == 0) continue;
      ApplyDefaults(*peer, peer->defaults);
      ApplyDefaults(*peer, peer->more_defaults);
      if (peer->finish != nullptr) peer->finish(draft_);
    }
    return Resolve(draft_);
  }

 private:
  static size_t Rank(const Peer* peer) {
    return std::find(Peers().begin(), Peers().end(), peer) - Peers().begin();
  }

  // A setting whose value is another file of settings.
  static bool NamesFile(const Setting& setting) {
    // Else it is one of TRL's names.
    if (setting.key == "accelerate_config") {
      return absl::EndsWith(setting.value, ".yaml");
    }
    static constexpr absl::string_view kNames[] = {
        "include",
        "config",
        "deepspeed",
        "fsdp_config",
        "config_file",
        "deepspeed_config_file",
        "deepspeed_config.deepspeed_config_file"};
    absl::string_view key = setting.key;
    absl::ConsumePrefix(&key, kLauncher);
    // "--deepspeed" of scripts of DeepSpeed's is a switch.
    return !setting.is_null && setting.value != "true" &&
           std::find(std::begin(kNames), std::end(kNames), key) !=
               std::end(kNames);
  }

  // Whether a command gives its program more than a file to read.
  static bool HasOwnOptions(const Settings& settings) {
    return !settings.program.empty() &&
           absl::c_any_of(settings.settings, [](const Setting& setting) {
             return !NamesFile(setting) &&
                    !absl::StartsWith(setting.key, kLauncher);
           });
  }

  // A folder with settings of PEFT's, such as its dropout.
  static bool NamesAdapter(const std::string& key) {
    return key == "lora_model_dir" || key == "adapter_name_or_path";
  }

  absl::Status ReadNamed(const std::string& key, const std::string& name,
                         const std::string& path) {
    const std::string found = draft_->Find(name);
    if (NamesAdapter(key)) {
      return PathExists(absl::StrCat(found, "/adapter_config.json"))
                 ? Read(found)
                 : absl::OkStatus();
    }
    if (!found.empty() && !IsFolder(found)) return Read(found);
    // accelerate's own are known by name alone: "zero2".
    draft_->Note(Effect::kLost, key, name, "",
                 absl::StrCat("isn't there, from here or from ", path,
                              ": give the file, too"));
    return absl::OkStatus();
  }

  void Apply(const ReadFile& file) {
    const Settings& settings = file.settings;
    // A script that isn't known is of the program whose file it reads.
    if (settings.program.empty() || PeerOfProgram(settings.program) ||
        HasOwnOptions(settings)) {
      draft_->peers.insert(file.peer->name);
    }
    for (const Unread& unread : settings.unread) {
      draft_->Note(Effect::kLost, unread.key, unread.value, "", unread.note);
    }
    for (const Setting& setting : settings.settings) {
      if (NamesFile(setting)) continue;
      if (setting.key == "adapter_folder" && file.peer == &kPeft) {
        draft_->Set("@lora_folder", setting.value, "the folder");
        continue;
      }
      if (!absl::StartsWith(setting.key, kLauncher)) {
        draft_->Apply(*file.peer, setting, false);
        continue;
      }
      Setting launch = setting;
      launch.key = setting.key.substr(sizeof(kLauncher) - 1);
      draft_->Apply(kAccelerate, launch, false);
    }
  }

  // An adapter's only where there is one.
  void ApplyDefaults(const Peer& peer, absl::string_view defaults) {
    for (const absl::string_view given :
         absl::StrSplit(defaults, ' ', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> sides =
          absl::StrSplit(given, absl::MaxSplits('=', 1));
      Setting setting{sides.first, sides.second};
      const bool adapts = draft_->Adapts() || peer.name == kTorchtune.name;
      if (!adapts && (absl::StrContains(setting.key, "lora") ||
                      absl::StrContains(setting.key, "quant"))) {
        continue;
      }
      if (setting.value[0] == '[') {
        setting.is_list = true;
        setting.items = absl::StrSplit(setting.value, absl::ByAnyChar("[,]"),
                                       absl::SkipEmpty());
      }
      draft_->Apply(peer, setting, true);
    }
  }

  Draft* const draft_;
  std::vector<ReadFile> files_;
};

}  // namespace

absl::StatusOr<Draft> Import(const std::vector<std::string>& files,
                             const std::string& folder) {
  Draft draft;
  draft.folder = folder;
  Importer importer(&draft);
  for (const std::string& file : files) {
    CAPSTAN_RETURN_IF_ERROR(importer.Read(file));
  }
  CAPSTAN_RETURN_IF_ERROR(importer.Finish());
  return draft;
}

}  // namespace capstan::import
