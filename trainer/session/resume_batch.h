// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_RESUME_BATCH_H_
#define CAPSTAN_TRAINER_SESSION_RESUME_BATCH_H_

#include <string>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/checkpoint.h"
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

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_RESUME_BATCH_H_
