// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_HUB_UPLOAD_H_
#define CAPSTAN_TRAINER_SESSION_HUB_UPLOAD_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/run_config.pb.h"

namespace capstan {

// The command that uploads `folder`: hf upload REPO FOLDER . [--private].
std::vector<std::string> UploadCommand(const HubUpload& upload,
                                       const std::string& folder);

// Runs it, without a shell, if there is an `hf` on PATH, with this process's
// environment and output; its token is its own business. Returns what to tell
// the user: what has been done, or, without an `hf`, what would have been. An
// error if it fails: the folder is whole, and the error says how to try again.
absl::StatusOr<std::string> UploadToHub(const HubUpload& upload,
                                        const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_HUB_UPLOAD_H_
