// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace {

int64_t TotalSteps(const Schedule& schedule, int64_t max_steps) {
  return schedule.total_steps() > 0 ? schedule.total_steps() : max_steps;
}

}  // namespace

int64_t StepsOfRun(const Train& train, int64_t samples,
                   int64_t global_batch_size) {
  if (train.max_epochs() <= 0) return train.max_steps();
  return static_cast<int64_t>(
      std::ceil(train.max_epochs() * static_cast<double>(samples) /
                static_cast<double>(global_batch_size)));
}

int64_t WarmupSteps(const Schedule& schedule, int64_t max_steps) {
  if (schedule.warmup_ratio() <= 0) return schedule.warmup_steps();
  return static_cast<int64_t>(
      std::ceil(schedule.warmup_ratio() *
                static_cast<double>(TotalSteps(schedule, max_steps))));
}

double LearningRateMultiplier(const Schedule& schedule, int64_t step,
                              int64_t max_steps) {
  const int64_t warmup = WarmupSteps(schedule, max_steps);
  if (step < warmup) {
    return static_cast<double>(step) / static_cast<double>(warmup);
  }
  const int64_t total = TotalSteps(schedule, max_steps);
  const double decay_steps =
      static_cast<double>(std::max<int64_t>(1, total - warmup));
  const double progress =
      std::min(1.0, static_cast<double>(step - warmup) / decay_steps);
  double multiple = 1.0;
  switch (schedule.kind()) {
    case Schedule::LINEAR:
      multiple = 1.0 - progress;
      break;
    case Schedule::COSINE:
      multiple = 0.5 * (1.0 + std::cos(M_PI * progress));
      break;
    default:
      return 1.0;
  }
  return schedule.min_ratio() + (1.0 - schedule.min_ratio()) * multiple;
}

absl::Status CheckSchedule(const Schedule& schedule, int64_t max_steps) {
  if (!Schedule::Kind_IsValid(schedule.kind())) {
    return FieldError("kind", absl::StrCat("no such value: ", schedule.kind()));
  }
  if (schedule.warmup_steps() < 0) {
    return FieldError("warmup_steps", "must not be negative");
  }
  if (!(schedule.warmup_ratio() >= 0.0 && schedule.warmup_ratio() <= 1.0)) {
    return FieldError("warmup_ratio", absl::StrCat("must be in [0, 1], is ",
                                                   schedule.warmup_ratio()));
  }
  if (schedule.total_steps() < 0) {
    return FieldError("total_steps", "must not be negative");
  }
  if (!(schedule.min_ratio() >= 0.0 && schedule.min_ratio() <= 1.0)) {
    return FieldError("min_ratio", absl::StrCat("must be in [0, 1], is ",
                                                schedule.min_ratio()));
  }
  const int64_t total = TotalSteps(schedule, max_steps);
  if (schedule.warmup_steps() > total) {
    return FieldError(
        "warmup_steps",
        absl::StrCat(schedule.warmup_steps(), " is more than the schedule's ",
                     total, " steps; warmup_ratio is a part of all steps"));
  }
  return absl::OkStatus();
}

}  // namespace capstan
