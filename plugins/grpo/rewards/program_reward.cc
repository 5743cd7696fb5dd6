// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/program_reward.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/reply.h"
#include "plugins/grpo/rewards/restarted_program.h"

namespace capstan::grpo {
namespace {

class ProgramReward final : public RewardFunction {
 public:
  explicit ProgramReward(std::unique_ptr<RestartedProgram> program)
      : program_(std::move(program)) {}

  absl::Status CheckRow(absl::string_view row) const override {
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<double>> Score(
      absl::Span<const Answer> answers) override {
    std::vector<std::string> lines;
    for (const Answer& answer : answers) lines.push_back(AnswerJson(answer));
    std::vector<double> values(lines.size());
    CAPSTAN_RETURN_IF_ERROR(
        program_->Ask(lines, [&values](size_t i, absl::string_view line) {
          CAPSTAN_ASSIGN_OR_RETURN(values[i], RewardOfLine(line));
          return absl::OkStatus();
        }));
    return values;
  }

 private:
  const std::unique_ptr<RestartedProgram> program_;
};

}  // namespace

std::unique_ptr<RewardFunction> NewProgramReward(
    std::unique_ptr<RestartedProgram> program) {
  return std::make_unique<ProgramReward>(std::move(program));
}

MadeReward NewProgram(const Program& config) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<RestartedProgram> program,
                           RestartedProgram::Create(config));
  return NewProgramReward(std::move(program));
}

}  // namespace capstan::grpo
