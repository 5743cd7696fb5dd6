// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SCHEDULE_H_
#define CAPSTAN_TRAINER_SESSION_SCHEDULE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "trainer/run_config.pb.h"

namespace capstan {

// Optimizer steps of a run on `samples` training samples: max_steps, or those
// of max_epochs, the last of which may go on into the next epoch.
int64_t StepsOfRun(const Train& train, int64_t samples,
                   int64_t global_batch_size);

// warmup_steps, or those of warmup_ratio (transformers' get_warmup_steps).
int64_t WarmupSteps(const Schedule& schedule, int64_t max_steps);

// What the optimizer's learning rate is multiplied by at optimizer step
// `step`, 0 for the first. A function of the step alone. Formulas:
// get_{constant,linear,cosine}_schedule_with_warmup of transformers'
// optimization.py, with the end raised from 0 to min_ratio; after the end it
// stays there. `max_steps` stands for total_steps where that is 0.
double LearningRateMultiplier(const Schedule& schedule, int64_t step,
                              int64_t max_steps);

// FieldError for values that make no sense (a warm-up longer than the run).
absl::Status CheckSchedule(const Schedule& schedule, int64_t max_steps);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SCHEDULE_H_
