// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_RUN_FOLDER_STEP_ASIDE_H_
#define CAPSTAN_DESK_RUN_FOLDER_STEP_ASIDE_H_

namespace capstan {

// Gives this thread, and those and the processes that it starts from then on,
// the least priority for cores and disks: a run on this machine comes first.
void StepAside();

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_STEP_ASIDE_H_
