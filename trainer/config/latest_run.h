// SPDX-License-Identifier: Apache-2.0
//
// runs/NAME/latest, which stands for the newest of a name's runs: a text file
// that holds its folder's name. A link would do for us, but TensorBoard follows
// links and would show that run twice.
#ifndef CAPSTAN_TRAINER_CONFIG_LATEST_RUN_H_
#define CAPSTAN_TRAINER_CONFIG_LATEST_RUN_H_

#include <string>

#include "absl/status/status.h"

namespace capstan {

// Makes RUNS/latest stand for RUNS/name. Takes the place of an older one at
// once, a link of earlier trainers included.
absl::Status SetLatestRun(const std::string& runs, const std::string& name);

// `path` with what such a file in it stands for: "runs/a/latest/final" is
// "runs/a/2026-01-31_12-00-00/final". Other paths, and other files of that
// name, are as they were. Every path that a user gives goes through here.
std::string FollowLatestRun(const std::string& path);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CONFIG_LATEST_RUN_H_
