// SPDX-License-Identifier: Apache-2.0
//
// train and check: both read a config and make all its plugins; train goes on.
#include <unistd.h>

#include <iostream>
#include <string>

#include "trainer/commands/commands.h"
#include "trainer/commands/prepare.h"
#include "trainer/launcher/launcher.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/schedule.h"
#include "trainer/session/train.h"

namespace capstan {

int TrainCommand(const RunOptions& options) {
  const absl::StatusOr<std::unique_ptr<Prepared>> prepared = Prepare(options);
  const absl::optional<int> done = Done(options, prepared);
  if (done.has_value()) return *done;
  TrainJob& job = (*prepared)->job;
  const RankMain train = [&job](const RankInfo& rank) {
    return RunTraining(&job, rank);
  };
  if ((*prepared)->environment.has_value()) {
    const int code = RunSingleRank(*(*prepared)->environment, train);
    // NCCL's and the store's threads still run: no static destructors.
    std::cout.flush();
    std::cerr.flush();
    _exit(code);
  }
  absl::StatusOr<std::string> folder =
      PrepareOutputFolder(job.loaded.config, job.workspace_folder);
  if (!folder.ok()) return Fail(folder.status());
  job.output_dir = *std::move(folder);
  return LaunchRanks((*prepared)->processes, train);
}

int CheckCommand(const RunOptions& options) {
  const absl::StatusOr<std::unique_ptr<Prepared>> prepared = Prepare(options);
  const absl::optional<int> done = Done(options, prepared);
  if (done.has_value()) return *done;
  const TrainJob& job = (*prepared)->job;
  std::cout << "OK: " << job.loaded.config.name() << ", "
            << ParameterCount(*job.parts.model) << " parameters, "
            << job.parts.train_data->size() << " training samples, "
            << job.parts.strategy_name << ", " << job.parts.precision_name
            << ", global batch " << job.batch.global_batch_size << " = micro "
            << job.batch.micro_batch_size << " x " << (*prepared)->processes
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

}  // namespace capstan
