// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/digest.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/probe.h"
#include "plugins/grpo/rewards/program_reward.h"
#include "plugins/grpo/rewards/reply.h"
#include "plugins/grpo/rewards/row_field.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::grpo {
namespace {

constexpr double kDefaultSeconds = 600.0;

// `trainer score` of this same program: models are loaded there.
::capstan::Program ScoreProgram(const RewardModel& config, int threads) {
  ::capstan::Program program;
  program.words = {"trainer", "score", absl::StrCat("--model=", config.path()),
                   absl::StrCat("--threads=", threads)};
  if (!config.gpu().empty()) program.words.emplace_back("--gpu");
  program.path = "/proc/self/exe";
  program.dies_with_parent = true;
  program.variables = {absl::StrCat("CUDA_VISIBLE_DEVICES=", config.gpu())};
  return program;
}

// The trainer's error in what it has printed.
std::string ErrorIn(const std::string& printed) {
  std::string error = "trainer score failed";
  for (absl::string_view line : absl::StrSplit(printed, '\n')) {
    if (absl::ConsumePrefix(&line, "ERROR: ")) error = std::string(line);
  }
  return error;
}

class ModelReward final : public RewardFunction, public Probed {
 public:
  explicit ModelReward(const RewardModel& config)
      : config_(config),
        seconds_(config.has_timeout_seconds() ? config.timeout_seconds()
                                              : kDefaultSeconds) {}

  // Has the model score some answer to the first row; others must have a
  // prompt, too.
  absl::Status CheckRow(absl::string_view row) const override {
    if (loads_) {
      return RowField(row, "messages").ok() ? absl::OkStatus()
                                            : RowField(row, "prompt").status();
    }
    const ScratchFolder folder;
    CAPSTAN_RETURN_IF_ERROR(folder.status());
    const std::string line = folder.path() + "/line";
    const std::string said = folder.path() + "/said";
    const std::string log = folder.path() + "/log";
    Answer answer;
    answer.row = row;
    answer.text = "?";
    CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(line, AnswerJson(answer)));
    ::capstan::Program program = ScoreProgram(config_, /*threads=*/1);
    program.input = open(line.c_str(), O_RDONLY | O_CLOEXEC);
    program.output = open(said.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    program.errors = open(log.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    const absl::StatusOr<pid_t> child = StartProgram(program);
    for (const int fd : {program.input, program.output, program.errors}) {
      close(fd);
    }
    CAPSTAN_RETURN_IF_ERROR(child.status());
    const absl::optional<ChildEnd> end = WaitFor(*child, seconds_);
    if (!end.has_value()) {
      kill(*child, SIGKILL);
      WaitFor(*child);
      return FieldError("timeout_seconds",
                        absl::StrCat(config_.path(), " hasn't scored a text ",
                                     "within ", seconds_, " s; raise it"));
    }
    if (end->ok()) {
      loads_ = true;
      const absl::StatusOr<std::string> score = ReadWholeFile(said);
      if (score.ok()) SetProbe(row, *score);
      return absl::OkStatus();
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string printed, ReadWholeFile(log));
    std::string error = ErrorIn(printed);
    return FieldError(absl::StartsWith(error, "--gpu") ? "gpu" : "path", error);
  }

  absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) override {
    if (program_ == nullptr) {
      program_ = NewProgramReward(std::make_unique<RestartedProgram>(
          ScoreProgram(config_, at::get_num_threads()), seconds_,
          RestartedProgram::kDefaultRestarts));
    }
    return program_->Score(answers);
  }

  absl::optional<Probe> probe() const override { return probe_; }

 private:
  void SetProbe(absl::string_view row, absl::string_view said) const {
    const absl::StatusOr<double> score =
        RewardOfLine(absl::StripTrailingAsciiWhitespace(said));
    if (score.ok() && std::isfinite(*score)) {
      probe_ = Probe{DigestText(row), *score};
    }
  }

  const RewardModel config_;
  const double seconds_;
  mutable bool loads_ = false;  // CheckRow has found so
  mutable absl::optional<Probe> probe_;
  std::unique_ptr<RewardFunction> program_;  // null: Score wasn't called yet
};

}  // namespace

MadeReward NewModel(const RewardModel& config) {
  if (config.path().empty()) return FieldError("path", "must be set");
  if (config.has_timeout_seconds()) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(config.timeout_seconds() > 0,
                                       "timeout_seconds", "greater than 0",
                                       config.timeout_seconds()));
  }
  return std::make_unique<ModelReward>(config);
}

}  // namespace capstan::grpo
