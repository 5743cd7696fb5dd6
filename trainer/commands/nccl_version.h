// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMMANDS_NCCL_VERSION_H_
#define CAPSTAN_TRAINER_COMMANDS_NCCL_VERSION_H_

#include <string>

namespace capstan {

// Of the NCCL that a run on GPUs would load, "2.28.9"; "not found" if there is
// none, "unknown" if it doesn't say.
std::string NcclVersion();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_NCCL_VERSION_H_
