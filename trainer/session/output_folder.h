// SPDX-License-Identifier: Apache-2.0
//
// Prepares a run's folder, and checks what a resumed run must not have changed.
#ifndef CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_
#define CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/config/load_config.h"
#include "host/config/run_config.pb.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/session/held_folder.h"

namespace capstan {

// Creates the run's folder and holds it (HoldFolder): config.output_dir, or
// WORKSPACE/runs/NAME/TIME, to which runs/NAME/latest then points. With
// train.resume AUTO a run with checkpoints is resumed in its folder (without
// output_dir: the latest, unless completed). Otherwise a folder that contains a
// run or is in use by one is an error, and is left untouched.
absl::StatusOr<HeldFolder> PrepareOutputFolder(
    const RunConfig& config, const std::string& workspace_folder,
    const std::string& placed_by = "",
    std::chrono::milliseconds patience = kLockPatience);

// Returns the newest checkpoint of the folder in which PrepareOutputFolder
// would resume a run, or "". Has no side effects.
std::string CheckpointToResume(const RunConfig& config,
                               const std::string& workspace_folder);

// Returns a folder known before rank 0 chooses the run's: config.output_dir, or
// WORKSPACE/runs/NAME. It may not exist.
std::string MeetingFolder(const RunConfig& config,
                          const std::string& workspace_folder);

// A run resumed from `checkpoint`, with numbers `earlier`, keeps its global
// batch on any number of ranks: fills it into `batch` if unset, and lowers the
// micro-batch if that doesn't divide it evenly (among ranks that can share it
// so, unless `deterministic`). An explicit global batch wins. Returns a line
// for the user if anything differs from what `batch` alone implies, else "".
std::string KeepGlobalBatch(const std::string& checkpoint,
                            const TrainState& earlier, const Mesh& mesh,
                            bool deterministic, Batching* batch);

// Checks that samples are grouped by length as in `checkpoint`'s run on the
// same data; otherwise its data position would refer to other samples.
// FieldError of Batching.
absl::Status CheckGroups(const std::string& checkpoint,
                         const TrainState& earlier, const TrainState& mine);

// Whether `checkpoint`'s run, with numbers `earlier`, can continue with `mine`:
// compares seed, data and its order, and frozen weights. Errors name the config
// location.
absl::Status CheckResumed(const LoadedConfig& loaded,
                          const std::string& checkpoint,
                          const TrainState& earlier, const TrainState& mine);

// Returns the command that resumes a stopped run: its original words, quoted
// for a shell, plus train.resume and the run's folder if missing. "" if the
// words are unknown.
std::string ResumeCommand(const std::vector<std::string>& words,
                          const RunConfig& config,
                          const std::string& output_dir);

// Quotes words for a shell.
std::string ShellText(const std::vector<std::string>& words);

// Returns a process's command line as users type it: under `bazel run` the
// program is "bazel run //trainer --".
std::vector<std::string> CommandWords(int argc, const char* const* argv);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_OUTPUT_FOLDER_H_
