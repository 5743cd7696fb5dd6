// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_
#define CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/run_config.pb.h"

namespace capstan {

// Makes the run's folder and returns it: config.output_dir, or
// WORKSPACE/runs/NAME/TIME, which runs/NAME/latest then points to. With
// train.resume AUTO a run with checkpoints is resumed in its folder (without
// output_dir: the latest, unless it is finished). Otherwise a folder that holds
// a run is an error, as is one in use by another run, and nothing in it is
// touched. The folder is in use until this process and its forks end.
absl::StatusOr<std::string> PrepareOutputFolder(
    const RunConfig& config, const std::string& workspace_folder);

// The newest checkpoint of the folder in which PrepareOutputFolder would resume
// a run, or "". Touches nothing.
std::string CheckpointToResume(const RunConfig& config,
                               const std::string& workspace_folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_
