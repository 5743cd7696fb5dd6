// SPDX-License-Identifier: Apache-2.0
//
// Which rows a run's step was computed from, and where: a function of its
// config, its data and what its folder says of its ranks.
#ifndef CAPSTAN_DESK_WHO_STEP_OF_RUN_H_
#define CAPSTAN_DESK_WHO_STEP_OF_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "host/config/load_config.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// A row of a step, by the rank that computed it. Of ranks that share rows
// (train.sequence_parallel) it is the first.
struct StepRow {
  int rank = 0;
  int64_t micro_batch = 0;  // of the rank's, in this step, from 0
  int64_t row = 0;          // within the micro-batch
  int64_t position = 0;     // in the run's sequence of samples
  int64_t epoch = 0;
  int64_t sample = 0;  // in the dataset
};

// The rows of the step whose first sample is at `position`, by rank and
// micro-batch.
std::vector<StepRow> RowsOfStep(const DataOrder& order, const BatchPlan& batch,
                                const Mesh& mesh, int64_t position);

// What a run's folder says of a step, without its plugins.
struct StepRecord {
  int64_t step = 0;  // from 1
  std::string config_text;
  std::string config_from;  // the file that has it, for errors
  // 0: the folder doesn't say.
  int world_size = 0;
  int64_t global_batch_size = 0;
  int64_t micro_batch_size = 0;
  // After which step the process began that did this one.
  int64_t begun_after = 0;
  // The newest checkpoint before the step, "" if there is none, and how far it
  // was.
  std::string checkpoint;
  TrainState before;
  // The first checkpoint at or after the step, and how far it was; unset: there
  // is none.
  std::string later_checkpoint;
  absl::optional<TrainState> after;
  // What metrics.jsonl has; unset if there is no such step (yet), or if it
  // wasn't finite.
  bool done = false;  // there is
  absl::optional<double> loss;
  absl::optional<double> grad_norm;
};

// Of whose weights, for users, the checkpoint before the step is: "those after
// step 40".
std::string WeightsBefore(const StepRecord& record);
// How far these are from those that the step was computed with, and which later
// checkpoint is nearer; "" if they are the same.
std::string WeightsNote(const StepRecord& record);

// Where the step's first sample is in the run's sequence, if its batch was
// `global_batch_size`: counted from the checkpoint at or after the step, since
// the run may have gone on with another batch after one that is gone, else from
// the one before it. Adds a note if the count may be wrong.
int64_t PositionOfStep(const StepRecord& record, int64_t global_batch_size,
                       std::vector<std::string>* notes);

// `folder` is a run's, which may be running. Of a run that was resumed with
// other settings the first checkpoint at or after the step says which it had
// then, else config.pbtxt; how many ranks it had, and with which micro-batch,
// ranks/ says, if there is such a folder, else that checkpoint, else
// summary.json. OUT_OF_RANGE: the run ends before the step.
absl::StatusOr<StepRecord> ReadStepRecord(const std::string& folder,
                                          int64_t step);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WHO_STEP_OF_RUN_H_
