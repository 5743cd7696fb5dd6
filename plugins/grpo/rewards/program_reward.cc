// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/program_reward.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/line_program.h"
#include "plugins/grpo/rewards/reply.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::grpo {
namespace {

constexpr double kDefaultSeconds = 60.0;

class ProgramReward final : public RewardFunction {
 public:
  ProgramReward(::capstan::Program child, double seconds, int64_t restarts)
      : child_(std::move(child)), seconds_(seconds), restarts_(restarts) {}

  absl::Status CheckRow(absl::string_view row) const override {
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) override {
    std::vector<double> values;
    for (int64_t restarts = 0; values.size() < answers.size(); ++restarts) {
      const absl::Status status = Go(answers, &values);
      if (status.ok()) continue;
      program_ = nullptr;
      const bool again =
          absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
      if (again && restarts < restarts_) continue;
      std::string message =
          absl::StrCat("the program ", child_.words[0], " ", status.message());
      if (again) {
        absl::StrAppend(
            &message, ", asked for answer ", values.size() + 1, " of ",
            answers.size(), ", after ", restarts,
            " restarts; look at what it printed, or raise ",
            absl::IsUnavailable(status) ? "restarts" : "timeout_seconds");
      }
      return WithMessage(status, message);
    }
    return values;
  }

 private:
  // Asks for the answers that have no value yet, and adds these.
  absl::Status Go(absl::Span<const Answer> answers,
                  std::vector<double>* values) {
    if (program_ == nullptr) {
      absl::StatusOr<std::unique_ptr<LineProgram>> started =
          LineProgram::Start(child_);
      if (!started.ok()) {
        return absl::FailedPreconditionError(
            absl::StrCat("can't be started: ", started.status().message()));
      }
      program_ = *std::move(started);
    }
    std::string text;
    for (size_t i = values->size(); i < answers.size(); ++i) {
      absl::StrAppend(&text, AnswerJson(answers[i]), "\n");
    }
    std::vector<std::string> lines;
    const absl::Status status =
        program_->Ask(text, answers.size() - values->size(), seconds_, &lines);
    // What it said before it failed counts.
    for (const std::string& line : lines) {
      const absl::StatusOr<double> value = RewardOfLine(line);
      if (!value.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("said of answer ", values->size() + 1, " of ",
                         answers.size(), ": ", value.status().message()));
      }
      values->push_back(*value);
    }
    return status;
  }

  const ::capstan::Program child_;
  const double seconds_;
  const int64_t restarts_;
  std::unique_ptr<LineProgram> program_;  // null: to be started
};

}  // namespace

std::unique_ptr<RewardFunction> NewProgramReward(::capstan::Program child,
                                                 double seconds,
                                                 int64_t restarts) {
  return std::make_unique<ProgramReward>(std::move(child), seconds, restarts);
}

MadeReward NewProgram(const Program& config) {
  if (config.command_size() == 0 || config.command(0).empty()) {
    return FieldError("command", "must be set");
  }
  if (config.has_timeout_seconds()) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(config.timeout_seconds() > 0,
                                       "timeout_seconds", "greater than 0",
                                       config.timeout_seconds()));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckField(config.restarts() >= 0, "restarts",
                                     "at least 0", config.restarts()));
  ::capstan::Program child;
  child.words = {config.command().begin(), config.command().end()};
  return NewProgramReward(
      std::move(child),
      config.has_timeout_seconds() ? config.timeout_seconds() : kDefaultSeconds,
      config.has_restarts() ? config.restarts() : kDefaultRestarts);
}

}  // namespace capstan::grpo
