// SPDX-License-Identifier: Apache-2.0
//
// Going on with a run: what must stay as it was, and the command to type.
#ifndef CAPSTAN_TRAINER_SESSION_RESUME_H_
#define CAPSTAN_TRAINER_SESSION_RESUME_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/config/load_config.h"
#include "trainer/run_config.pb.h"

namespace capstan {

// A run that goes on from `checkpoint`, whose numbers are `earlier`, keeps its
// global batch whatever the number of ranks: sets it in `batch` where that
// leaves it open, and lowers the micro-batch where it wouldn't cut it evenly. A
// global batch that is set wins. Returns a line for the user where anything is
// other than `batch` alone would have it, else "". FieldError where the ranks
// can't share the global batch.
absl::StatusOr<std::string> KeepGlobalBatch(const std::string& checkpoint,
                                            const TrainState& earlier,
                                            int world_size, Batching* batch);

// Whether samples are grouped by length as in the run in `checkpoint`, whose
// data is the same: else its data position would mean other samples. FieldError
// of Batching.
absl::Status CheckGroups(const std::string& checkpoint,
                         const TrainState& earlier, const TrainState& mine);

// Whether the run in `checkpoint`, whose numbers are `earlier`, can go on with
// `mine`: seed, data and its order, and frozen weights. Errors name the place
// in the config.
absl::Status CheckResumed(const LoadedConfig& loaded,
                          const std::string& checkpoint,
                          const TrainState& earlier, const TrainState& mine);

// What to type to go on with a run that was stopped: the words that it was
// started with, quoted for a shell, and what they lack of train.resume and of
// the folder that the run was given. "" if the words aren't known.
std::string ResumeCommand(const std::vector<std::string>& words,
                          const RunConfig& config,
                          const std::string& output_dir);

// Words as a line of a shell.
std::string ShellText(const std::vector<std::string>& words);

// A process's words as a user types them: under `bazel run` the program is
// "bazel run //trainer --".
std::vector<std::string> CommandWords(int argc, const char* const* argv);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RESUME_H_
