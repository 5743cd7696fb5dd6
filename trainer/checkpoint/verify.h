// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_VERIFY_H_
#define CAPSTAN_TRAINER_CHECKPOINT_VERIFY_H_

#include <string>

#include "absl/status/status.h"
#include "trainer/checkpoint/manifest.h"

namespace capstan {

// Reads every byte of the checkpoint in `folder` and compares all checksums.
// DATA_LOSS, naming file and tensor, if it is damaged. Needs no plugins.
absl::Status VerifyCheckpoint(const std::string& folder);

// Only that its files are there, as long as the manifest says and with the
// headers that it says.
absl::Status CheckHeaders(const std::string& folder, const Manifest& manifest);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_VERIFY_H_
