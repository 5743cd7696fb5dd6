// SPDX-License-Identifier: Apache-2.0
//
// runs/NAME/latest refers to a name's newest run: a text file that holds the
// run folder's name, not a symlink, since TensorBoard follows symlinks and
// would show the run twice.
#ifndef CAPSTAN_TRAINER_CONFIG_LATEST_RUN_H_
#define CAPSTAN_TRAINER_CONFIG_LATEST_RUN_H_

#include <string>

#include "absl/status/status.h"

namespace capstan {

// Makes RUNS/latest refer to RUNS/name, atomically replacing an older one, a
// symlink of earlier versions included.
absl::Status SetLatestRun(const std::string& runs, const std::string& name);

// Resolves such a file within `path`: "runs/a/latest/final" becomes
// "runs/a/2026-01-31_12-00-00/final". Other paths, and other files of that
// name, are unchanged. Apply to every path that a user gives.
std::string FollowLatestRun(const std::string& path);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CONFIG_LATEST_RUN_H_
