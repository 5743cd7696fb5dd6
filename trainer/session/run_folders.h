// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RUN_FOLDERS_H_
#define CAPSTAN_TRAINER_SESSION_RUN_FOLDERS_H_

#include "inference/load/run_folders.h"

namespace capstan {

// Reads what this trainer's runs have written.
const RunFolders& RunFoldersHere();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RUN_FOLDERS_H_
