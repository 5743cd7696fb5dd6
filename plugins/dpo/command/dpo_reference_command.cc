// SPDX-License-Identifier: Apache-2.0
//
// `trainer dpo-reference`: an evaluation (`trainer eval`) of each data file by
// capstan.dpo, which writes what it has computed into the config's
// objective.reference.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "plugins/sdk/command.h"

namespace capstan {
namespace {

// Runs the trainer with these words; returns its exit code.
absl::StatusOr<int> RunTrainer(std::vector<std::string> words) {
  Program trainer;
  trainer.words = std::move(words);
  trainer.words.insert(trainer.words.begin(), "trainer");
  trainer.path = "/proc/self/exe";
  trainer.inherits_descriptors = true;
  const absl::StatusOr<ChildEnd> end = RunProgram(trainer);
  if (!end.ok() || !end->known()) {
    return absl::InternalError(
        absl::StrCat("the trainer can't be started again: ",
                     end.ok() ? end->Text() : end.status().message()));
  }
  return end->signal > 0 ? 128 + end->signal : end->code;
}

class DpoReferenceCommand : public Command {
 public:
  static absl::StatusOr<std::unique_ptr<DpoReferenceCommand>> Create(
      const NoConfig&) {
    return std::make_unique<DpoReferenceCommand>();
  }

  void AddFlags(Flags& flags) override {
    flags
        .Add("--config", &config_,
             "The run to prepare: its objective.reference is the file to "
             "write, and its train_data says how pairs are read")
        .Type("FILE")
        .Required();
    flags
        .Add("--model", &model_,
             "The folder of the model that the run starts from")
        .Type("FOLDER")
        .Required();
    flags
        .Add(
            "--adapter", &adapter_,
            "The adapter that the run continues from (adapter.lora.pretrained)")
        .Type("FOLDER");
    flags
        .Add("--data", &data_,
             "A file of pairs; may be given several times, for training's and "
             "the evaluation's")
        .Type("FILE")
        .Required()
        .OneEach();
    flags
        .Add("--batch_size", &batch_size_,
             "Pairs of one forward; default: the run's")
        .Positive();
    flags
        .Add("--plugin_path", &plugin_path_,
             "A folder with plugins (lib*.so), searched before the trainer's "
             "own; may be given several times")
        .Type("FOLDER")
        .OneEach();
  }

  absl::StatusOr<int> Run(CommandHost&) override {
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
      for (const std::string& folder : plugin_path_) {
        words.push_back(absl::StrCat("--plugin_path=", folder));
      }
      CAPSTAN_ASSIGN_OR_RETURN(const int code, RunTrainer(std::move(words)));
      if (code != 0) return code;
    }
    return 0;
  }

 private:
  std::string config_;
  std::string model_;
  std::string adapter_;  // empty: none
  std::vector<std::string> data_;
  int64_t batch_size_ = 0;
  std::vector<std::string> plugin_path_;
};

}  // namespace

CAPSTAN_COMMAND("capstan.command_dpo_reference", DpoReferenceCommand,
                "Compute once what preference training compares with");

}  // namespace capstan
