// SPDX-License-Identifier: Apache-2.0
//
// train and check: both read a config and create all its plugins; train
// continues.
#include <unistd.h>

#include <iostream>
#include <string>

#include "base/status.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/launcher/launcher.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/schedule.h"
#include "trainer/session/train.h"

namespace capstan {
namespace {

class TrainCommand : public Command {
 public:
  void AddFlags(Flags& flags) override { AddRunOptions(flags, &options_); }

  absl::StatusOr<int> Run(CommandHost&) override {
    options_.collect = true;
    return RunTraining(options_);
  }

 private:
  RunOptions options_;
};

class CheckCommand : public Command {
 public:
  void AddFlags(Flags& flags) override { AddRunOptions(flags, &options_); }
  absl::StatusOr<int> Run(CommandHost&) override;

 private:
  RunOptions options_;
};

const RegisterCommand<TrainCommand> train(
    10, "train", "Train as a config says (the default)");
const RegisterCommand<CheckCommand> check(
    20, "check", "Parse a config, make its plugins and see that they fit");

absl::StatusOr<int> CheckCommand::Run(CommandHost&) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           Prepare(options_));
  if (prepared == nullptr) return 0;
  const TrainJob& job = prepared->job;
  std::cout << "OK: " << job.loaded.config.name() << ", "
            << ParameterCount(*job.parts.model) << " parameters, "
            << job.parts.train_data->size() << " training samples, "
            << job.parts.strategy_name << ", " << job.parts.precision_name
            << ", global batch " << job.batch.global_batch_size << " = micro "
            << job.batch.micro_batch_size << " x " << prepared->processes
            << " ranks x accumulation " << job.batch.accumulation << ", "
            << StepsOfRun(job.loaded.config.train(),
                          job.parts.train_data->size(),
                          job.batch.global_batch_size)
            << " steps\n";
  for (const std::string& note : job.loaded.notes) std::cout << note << "\n";
  for (const std::string& note : job.notes) std::cout << note << "\n";
  for (const std::string& note : job.parts.train_data->notes()) {
    std::cout << note << "\n";
  }
  return 0;
}

}  // namespace

absl::StatusOr<int> RunTraining(const RunOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           Prepare(options));
  if (prepared == nullptr) return 0;
  TrainJob& job = prepared->job;
  const RankMain train = [&job](const RankInfo& rank) {
    return RunTraining(&job, rank);
  };
  if (prepared->environment.has_value()) {
    const int code = RunSingleRank(*prepared->environment, train);
    // Skip static destructors: NCCL's and the store's threads still run.
    std::cout.flush();
    std::cerr.flush();
    _exit(code);
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      job.output_dir,
      PrepareOutputFolder(job.loaded.config, job.workspace_folder));
  return LaunchRanks(prepared->processes, train);
}

}  // namespace capstan
