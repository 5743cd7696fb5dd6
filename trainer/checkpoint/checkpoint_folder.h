// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <cstdint>
#include <string>

namespace capstan {

// OUTPUT_DIR/checkpoints/step-NNNNNNNN.
std::string CheckpointFolder(const std::string& output_dir, int64_t step);

// Removes all but the newest `keep` checkpoints (all stay if it is 0 or less),
// never those of `saved_step` and `best_step`, and what killed runs have left
// half-done. What can't be removed is logged and stays.
void RemoveOldCheckpoints(const std::string& output_dir, int keep,
                          int64_t saved_step, int64_t best_step);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_FOLDER_H_
