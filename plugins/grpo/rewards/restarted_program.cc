// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/restarted_program.h"

#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::grpo {
namespace {

constexpr double kDefaultSeconds = 60.0;

}  // namespace

absl::StatusOr<std::unique_ptr<RestartedProgram>> RestartedProgram::Create(
    const Program& config) {
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
  return std::make_unique<RestartedProgram>(
      std::move(child),
      config.has_timeout_seconds() ? config.timeout_seconds() : kDefaultSeconds,
      config.has_restarts() ? config.restarts() : kDefaultRestarts);
}

absl::Status RestartedProgram::Ask(absl::Span<const std::string> lines,
                                   const Take& take) {
  for (int64_t restarts = 0;; ++restarts) {
    size_t taken = 0;
    const absl::Status status = Go(lines, take, &taken);
    if (status.ok()) return status;
    program_ = nullptr;
    const bool again =
        absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    std::string message =
        absl::StrCat("the program ", child_.words[0], " ", status.message());
    if (again) {
      absl::StrAppend(&message, ", asked for answer ", taken + 1, " of ",
                      lines.size());
      if (restarts < restarts_) {
        std::cerr << absl::StrCat("capstan.grpo: ", message,
                                  ": it is started anew and asked for all\n");
        continue;
      }
      absl::StrAppend(
          &message, ", after ", restarts,
          restarts == 1 ? " restart" : " restarts",
          "; look at what it printed, or raise ",
          absl::IsUnavailable(status) ? "restarts" : "timeout_seconds");
    }
    return WithMessage(status, message);
  }
}

absl::Status RestartedProgram::Go(absl::Span<const std::string> lines,
                                  const Take& take, size_t* taken) {
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
  for (const std::string& line : lines) absl::StrAppend(&text, line, "\n");
  std::vector<std::string> said;
  const absl::Status status =
      program_->Ask(text, lines.size(), seconds_, &said);
  for (const std::string& line : said) {
    const absl::Status fine = take(*taken, line);
    if (!fine.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("said of answer ", *taken + 1, " of ", lines.size(),
                       ": ", fine.message()));
    }
    ++*taken;
  }
  return status;
}

}  // namespace capstan::grpo
