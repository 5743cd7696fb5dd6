// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SCHEDULE_H_
#define CAPSTAN_TRAINER_SESSION_SCHEDULE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "host/config/run_config.pb.h"

namespace capstan {

// Returns the optimizer steps of a run on `samples` training samples:
// max_steps, or max_epochs rounded up to whole steps.
int64_t StepsOfRun(const Train& train, int64_t samples,
                   int64_t global_batch_size);

// Where the schedule ends: total_steps, or the run's last step.
int64_t TotalSteps(const Schedule& schedule, int64_t max_steps);

// Returns warmup_steps, or what warmup_ratio gives (transformers'
// get_warmup_steps).
int64_t WarmupSteps(const Schedule& schedule, int64_t max_steps);

// Returns the number of steps of WSD's decay, from decay_steps or decay_ratio
// (rounded up, but never into the warm-up).
int64_t DecaySteps(const Schedule& schedule, int64_t max_steps);

// Returns the factor on the optimizer's learning rate at optimizer step `step`,
// from 0, which depends on the step alone. Formulas:
// - get_{constant,linear,cosine}_schedule_with_warmup and get_wsd_schedule
//   (linear and 1-sqrt) of transformers' optimization.py, with the final value
//   raised from 0 to min_ratio and held after the end;
// - ONE_CYCLE: torch.optim.lr_scheduler.OneCycleLR with its defaults and
//   total_steps one greater than ours: like the others it ends at the step
//   after the last. warmup_ratio is its pct_start, so the peak is at
//   pct_start * (total + 1) - 1, which needn't be a whole step; with
//   warmup_steps the peak is at that step.
// `max_steps` is used if total_steps is 0.
double LearningRateMultiplier(const Schedule& schedule, int64_t step,
                              int64_t max_steps);

// Returns whether the first `steps` optimizer steps have the same factors in
// both runs.
bool SameFactors(const Schedule& a, int64_t a_max_steps, const Schedule& b,
                 int64_t b_max_steps, int64_t steps);

// Returns a FieldError for invalid values (e.g. a warm-up longer than the run).
absl::Status CheckSchedule(const Schedule& schedule, int64_t max_steps);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SCHEDULE_H_
