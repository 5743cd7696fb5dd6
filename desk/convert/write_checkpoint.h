// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_CONVERT_WRITE_CHECKPOINT_H_
#define CAPSTAN_DESK_CONVERT_WRITE_CHECKPOINT_H_

#include <string>

#include "absl/status/statusor.h"
#include "desk/convert/weight_source.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// Writes a checkpoint of the run `job` into OUTPUT_DIR/checkpoints, from which
// the run goes on: weights and the optimizer's moments are the source's, its
// updates are the run's steps, and the data position is that after as many
// steps. Returns its folder. It appears whole or not at all. An error if the
// source lacks a trained parameter or a state that the run's optimizer keeps.
// Memory holds about a GiB, and one parameter.
absl::StatusOr<std::string> WriteCheckpoint(const WeightSource& source,
                                            const TrainJob& job,
                                            const std::string& output_dir);

}  // namespace capstan

#endif  // CAPSTAN_DESK_CONVERT_WRITE_CHECKPOINT_H_
