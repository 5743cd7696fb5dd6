// SPDX-License-Identifier: Apache-2.0
//
// `trainer dpo-reference`: an evaluation (`trainer eval`) of each data file by
// capstan.dpo, which writes what it has computed into the config's
// objective.reference.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "plugins/sdk/command.h"

namespace capstan {
namespace {

// Runs the trainer with these words; returns its exit code. What it prints
// goes to `output`.
absl::StatusOr<int> RunTrainer(std::vector<std::string> words,
                               int output = STDOUT_FILENO) {
  Program trainer;
  trainer.words = std::move(words);
  trainer.words.insert(trainer.words.begin(), "trainer");
  trainer.path = "/proc/self/exe";
  trainer.output = output;
  trainer.inherits_descriptors = true;
  const absl::StatusOr<ChildEnd> end = RunProgram(trainer);
  if (!end.ok() || !end->known()) {
    return absl::InternalError(
        absl::StrCat("the trainer can't be started again: ",
                     end.ok() ? end->Text() : end.status().message()));
  }
  return end->signal > 0 ? 128 + end->signal : end->code;
}

// The lines of a printed config's `slot`, without indentation.
std::vector<absl::string_view> LinesOf(const std::string& config,
                                       absl::string_view slot) {
  std::vector<absl::string_view> lines;
  bool inside = false;
  for (const absl::string_view line : absl::StrSplit(config, '\n')) {
    if (!line.empty() && line[0] != ' ' && line[0] != '}') {
      inside = line == absl::StrCat(slot, " {");
    }
    if (inside) lines.push_back(absl::StripLeadingAsciiWhitespace(line));
  }
  return lines;
}

// The strings that a printed config has for `field` anywhere in `slot`.
std::vector<std::string> StringsIn(const std::string& config,
                                   absl::string_view slot,
                                   absl::string_view field) {
  std::vector<std::string> found;
  for (absl::string_view line : LinesOf(config, slot)) {
    std::string text;
    if (absl::ConsumePrefix(&line, absl::StrCat(field, ": \"")) &&
        absl::ConsumeSuffix(&line, "\"") && absl::CUnescape(line, &text)) {
      found.push_back(text);
    }
  }
  return found;
}

class DpoReferenceCommand : public Command {
 public:
  static absl::StatusOr<std::unique_ptr<DpoReferenceCommand>> Create(
      const NoConfig&) {
    return std::make_unique<DpoReferenceCommand>();
  }

  void AddFlags(Flags& flags) override {
    flags
        .Add("config,--config", &config_,
             "The run to prepare: its objective.reference is the file to "
             "write, and its train_data says how pairs are read")
        .Type("FILE")
        .Required();
    flags
        .Add("--model", &model_,
             "The folder of the model that the run starts from; default: the "
             "config's")
        .Type("FOLDER");
    flags
        .Add("--adapter", &adapter_,
             "The adapter that the run continues from; default: the config's "
             "adapter.lora.pretrained")
        .Type("FOLDER");
    flags
        .Add("--data", &data_,
             "A file of pairs; may be given several times; default: the "
             "config's train_data and eval_data")
        .Type("FILE")
        .OneEach();
    flags
        .Add("--batch_size", &batch_size_,
             "Pairs of one forward; default: the run's")
        .Positive();
    flags
        .Add("--set", &overrides_,
             "Overrides one field of the config: objective.beta=0.2")
        .Type("PATH=VALUE")
        .OneEach();
    flags
        .Add("--plugin_path", &plugin_path_,
             "A folder with plugins (lib*.so), searched before the trainer's "
             "own; may be given several times")
        .Type("FOLDER")
        .OneEach();
  }

  absl::StatusOr<int> Run(CommandHost&) override {
    // With all said, eval alone reads the config.
    if (model_.empty() || data_.empty() || MayNameAdapter()) {
      CAPSTAN_ASSIGN_OR_RETURN(const int told, TakeFromConfig());
      if (told != 0) return told;
    }
    for (const std::string& data : data_) {
      std::vector<std::string> words = {"eval",
                                        absl::StrCat("--config=", config_),
                                        absl::StrCat("--model=", model_),
                                        absl::StrCat("--data=", data),
                                        "--set",
                                        "objective.write_reference=true",
                                        "--loss_only"};
      if (!adapter_.empty()) {
        words.push_back(absl::StrCat("--adapter=", adapter_));
      }
      if (batch_size_ > 0) {
        words.push_back(absl::StrCat("--batch_size=", batch_size_));
      }
      for (const std::string& set : overrides_) {
        words.insert(words.end(), {"--set", set});
      }
      for (const std::string& folder : plugin_path_) {
        words.push_back(absl::StrCat("--plugin_path=", folder));
      }
      CAPSTAN_ASSIGN_OR_RETURN(const int code, RunTrainer(std::move(words)));
      if (code != 0) return code;
    }
    return 0;
  }

 private:
  // Whether the config may have an adapter that no flag says.
  bool MayNameAdapter() const {
    const absl::StatusOr<std::string> config = ReadWholeFile(config_);
    return adapter_.empty() &&
           (!config.ok() ||
            absl::StrContains(
                absl::StrCat(*config, absl::StrJoin(overrides_, " ")),
                "adapter"));
  }

  // Fills in the flags that aren't given, of a run that needs a reference.
  // Returns the exit code of the trainer, which has told what is wrong with the
  // config.
  absl::StatusOr<int> TakeFromConfig() {
    const ScratchFolder folder;
    CAPSTAN_RETURN_IF_ERROR(folder.status());
    const std::string path = folder.path() + "/config.pbtxt";
    std::vector<std::string> words = {
        "train", absl::StrCat("--config=", config_), "--print_config"};
    for (const std::string& set : overrides_) {
      words.insert(words.end(), {"--set", set});
    }
    for (const std::string& plugins : plugin_path_) {
      words.push_back(absl::StrCat("--plugin_path=", plugins));
    }
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return absl::ErrnoToStatus(errno, path);
    const absl::StatusOr<int> code = RunTrainer(std::move(words), file);
    close(file);
    if (!code.ok() || *code != 0) return code;
    CAPSTAN_ASSIGN_OR_RETURN(const std::string config, ReadWholeFile(path));
    if (!absl::c_linear_search(LinesOf(config, "objective"),
                               "[plugin/capstan.dpo.Config] {")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--config=", config_,
          " trains by another objective than capstan.dpo, the only one that "
          "compares with a reference: start the run itself"));
    }
    const auto first = [&](const char* slot, std::string* flag) {
      const std::vector<std::string> found =
          StringsIn(config, slot, "pretrained");
      if (flag->empty() && !found.empty()) *flag = found[0];
    };
    first("model", &model_);
    first("adapter", &adapter_);
    if (data_.empty()) {
      data_ = StringsIn(config, "train_data", "path");
      const std::vector<std::string> more =
          StringsIn(config, "eval_data", "path");
      data_.insert(data_.end(), more.begin(), more.end());
    }
    if (!model_.empty() && !data_.empty()) return 0;
    return absl::InvalidArgumentError(absl::StrCat(
        "--config=", config_, " names no ",
        model_.empty() ? "model that the run starts from: say it with --model"
                       : "file of pairs: say it with --data"));
  }

  std::string config_;
  std::string model_;
  std::string adapter_;  // empty: none
  std::vector<std::string> data_;
  int64_t batch_size_ = 0;
  std::vector<std::string> overrides_;
  std::vector<std::string> plugin_path_;
};

}  // namespace

CAPSTAN_COMMAND("capstan.command_dpo_reference", DpoReferenceCommand,
                "Compute once what preference training compares with");

}  // namespace capstan
