// SPDX-License-Identifier: Apache-2.0
//
// `trainer dpo-reference`: an evaluation (`trainer eval`) of each data file by
// capstan.dpo, which writes what it has computed into the config's
// objective.reference.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/command.h"

namespace capstan {
namespace {

// Runs the trainer with these words; returns its exit code.
absl::StatusOr<int> RunTrainer(std::vector<std::string> words) {
  words.insert(words.begin(), "trainer");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    execv("/proc/self/exe", arguments.data());
    _exit(127);
  }
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) != child) {
    if (errno != EINTR) break;
  }
  if (child < 0 || !(WIFEXITED(status) || WIFSIGNALED(status))) {
    return absl::InternalError(absl::StrCat(
        "the trainer can't be started again: ", std::strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
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
