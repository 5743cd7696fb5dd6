// SPDX-License-Identifier: Apache-2.0
//
// fit: how a config is best run on a machine, before a GPU is rented.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/fit/fitter.h"
#include "desk/fit/report.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan::fit {
namespace {

struct FitOptions {
  RunOptions run;
  std::vector<std::string> machines;
  std::string wish = "time";
  int trials = 4;
  std::string write;
  bool again = false;
  bool packing = false;
};

absl::StatusOr<Wish> WishOf(const std::string& text) {
  if (text == "time") return Wish::kTime;
  if (text == "memory") return Wish::kMemory;
  if (text == "cost") return Wish::kCost;
  return absl::InvalidArgumentError(absl::StrCat(
      "--wish must be time, memory or cost, is '", PrintableText(text), "'"));
}

// One line that is overwritten on a terminal.
class Progress {
 public:
  void Show(const std::string& what) {
    const Console console(STDERR_FILENO);
    ++count_;
    std::string text = absl::StrCat("measuring (", count_, "): ", what);
    if (console.terminal()) {
      text.resize(std::min<size_t>(text.size(), console.Columns() - 1));
    }
    console.Write(console.terminal() ? absl::StrCat("\r\033[K", text)
                                     : absl::StrCat(text, "\n"));
  }
  void End() const {
    const Console console(STDERR_FILENO);
    if (count_ > 0 && console.terminal()) console.Write("\r\033[K");
  }

 private:
  int count_ = 0;
};

// Of what can be known before steps are measured.
absl::Status Check(const FitOptions& options) {
  if (options.trials < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trials must be 0 or more, is ", options.trials));
  }
  const std::string path = FromCaller(options.write);
  std::error_code none;
  // A link that leads nowhere, too.
  if (!options.write.empty() &&
      std::filesystem::exists(std::filesystem::symlink_status(path, none))) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--write: ", path, " exists; name another file or remove it"));
  }
  return absl::OkStatus();
}

absl::Status Write(const std::string& path, const Answer& answer) {
  return WriteWholeFile(
      path,
      absl::StrCat("# `trainer fit` chose this for ", answer.machine.name,
                   ":\n# add it with --config ", "behind the run's own.\n",
                   ConfigText(answer, *answer.best())));
}

absl::StatusOr<int> Fit(const FitOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(Check(options));
  Question question;
  question.run = options.run;
  question.machines = options.machines;
  question.trials = options.trials;
  question.again = options.again;
  question.packing = options.packing;
  CAPSTAN_ASSIGN_OR_RETURN(question.wish, WishOf(options.wish));
  Progress progress;
  question.progress = [&progress](const std::string& what) {
    progress.Show(what);
  };
  const absl::StatusOr<Answer> answer = Find(question);
  progress.End();
  CAPSTAN_RETURN_IF_ERROR(answer.status());
  if (options.run.print_config) return 0;
  const Console console(STDOUT_FILENO);
  console.Write(options.run.json
                    ? JsonText(AsJson(*answer), 2) + "\n"
                    : PrintableText(AsText(*answer, console.Columns())));
  if (answer->best() == nullptr) {
    return WithCode(
        absl::ResourceExhaustedError(absl::StrCat(
            "nothing fits on ", answer->machine.name,
            "; take more or larger machines, shorter sequences, an adapter "
            "(adapter { lora {} }) or a smaller model")),
        "memory/plan");
  }
  if (!options.write.empty()) {
    CAPSTAN_RETURN_IF_ERROR(Write(FromCaller(options.write), *answer));
  }
  return 0;
}

void AddFlags(Flags& flags, FitOptions* options) {
  AddRunOptions(flags, &options->run);
  flags
      .Add("--machine", &options->machines,
           "A machine or cluster that needn't be here: a description, or what "
           "`doctor --json` or `fit --json` wrote there; several add up")
      .Type("FILE");
  flags
      .Add("--wish", &options->wish,
           "What is to be least: time, memory or cost; default: time")
      .Type("WISH");
  flags
      .Add("--trials", &options->trials,
           "How many of the best are run for some steps, where the machine is "
           "this one; default: 4")
      .Type("NUMBER");
  flags
      .Add("--write", &options->write,
           "A new file for the best one's lines of a config")
      .Type("FILE");
  flags.Add("--again", &options->again,
            "Measure anew what earlier calls have measured");
  flags.Add("--packing", &options->packing,
            "Also say what an epoch takes with each packing of rows");
  flags.Add("--json", &options->run.json, "Print JSON, for programs");
}

const RegisterFunction<FitOptions> fit("fit", AddFlags, Fit);

}  // namespace
}  // namespace capstan::fit
