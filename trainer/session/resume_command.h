// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RESUME_COMMAND_H_
#define CAPSTAN_TRAINER_SESSION_RESUME_COMMAND_H_

#include <string>
#include <vector>

#include "trainer/run_config.pb.h"

namespace capstan {

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

#endif  // CAPSTAN_TRAINER_SESSION_RESUME_COMMAND_H_
