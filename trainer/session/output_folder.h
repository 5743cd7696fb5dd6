// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_
#define CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/run_config.pb.h"

namespace capstan {

// Makes the run's folder and returns it: config.output_dir, or
// WORKSPACE/runs/NAME/TIME, for which runs/NAME/latest then stands. With
// train.resume AUTO a folder with checkpoints is taken up again (of a run
// without output_dir: the latest, unless it is finished). A folder that holds
// a run, or that a run is using now, is an error otherwise: nothing in it is
// touched. The folder is in use until the process ends (and its forks).
absl::StatusOr<std::string> PrepareOutputFolder(
    const RunConfig& config, const std::string& workspace_folder);

// The newest checkpoint of the folder that PrepareOutputFolder would take up
// again, or "". Touches nothing.
std::string CheckpointToResume(const RunConfig& config,
                               const std::string& workspace_folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_
