// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_
#define CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/run_config.pb.h"

namespace capstan {

// Creates the run's folder and returns it: config.output_dir, or
// WORKSPACE/runs/NAME/TIME, to which runs/NAME/latest then points. With
// train.resume AUTO a run with checkpoints is resumed in its folder (without
// output_dir: the latest, unless completed). Otherwise a folder that contains a
// run or is in use by one is an error, and is left untouched. The folder is
// locked until this process and its forks end; who finds it so is told this
// process and `placed_by`, the job that it belongs to ("SLURM: job 7"). A file
// system that has no locks brings a warning.
absl::StatusOr<std::string> PrepareOutputFolder(
    const RunConfig& config, const std::string& workspace_folder,
    const std::string& placed_by = "");

// The newest checkpoint of the folder in which PrepareOutputFolder would resume
// a run, or "". Has no side effects.
std::string CheckpointToResume(const RunConfig& config,
                               const std::string& workspace_folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_
