// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "host/config/load_config.h"

namespace capstan {
namespace {

// torch's OneCycleLR: pct_start, 1 / div_factor, 1 / final_div_factor of that.
constexpr double kDefaultRise = 0.3;
constexpr double kFirstOfOneCycle = 1.0 / 25.0;
constexpr double kLastOfOneCycle = kFirstOfOneCycle / 1e4;

int64_t RoundedUp(double ratio, int64_t total) {
  return static_cast<int64_t>(std::ceil(ratio * static_cast<double>(total)));
}

int64_t UnfittedDecaySteps(const Schedule& schedule, int64_t total) {
  if (schedule.has_decay_steps()) return schedule.decay_steps();
  return RoundedUp(
      schedule.has_decay_ratio() ? schedule.decay_ratio() : kDefaultDecayRatio,
      total);
}

// From `from` at progress 0 to `to` at 1, along half a cosine.
double HalfCosine(double from, double to, double progress) {
  return to + (from - to) * 0.5 * (1.0 + std::cos(M_PI * progress));
}

double OneCycle(const Schedule& schedule, double step, double total) {
  const double ratio =
      schedule.has_warmup_ratio() ? schedule.warmup_ratio() : kDefaultRise;
  const double peak = schedule.has_warmup_steps()
                          ? static_cast<double>(schedule.warmup_steps())
                          : ratio * (total + 1.0) - 1.0;
  if (step <= peak && peak > 0.0) {
    return HalfCosine(kFirstOfOneCycle, 1.0, step / peak);
  }
  return HalfCosine(1.0, kLastOfOneCycle,
                    std::min(1.0, (step - peak) / (total - peak)));
}

// An error if a field is set that the schedule's kind doesn't use.
absl::Status CheckFieldsOfKind(const Schedule& schedule) {
  const Schedule::Kind kind = schedule.kind();
  const bool wsd = kind == Schedule::WSD;
  const bool ends = wsd || kind == Schedule::LINEAR || kind == Schedule::COSINE;
  const struct {
    const char* field;
    bool set;
    bool used;
    const char* kinds;
  } rules[] = {
      {"min_ratio", schedule.min_ratio() != 0.0, ends, "LINEAR, COSINE or WSD"},
      {"decay_steps", schedule.has_decay_steps(), wsd, "WSD"},
      {"decay_ratio", schedule.has_decay_ratio(), wsd, "WSD"},
      {"decay_shape", schedule.decay_shape() != Schedule::LINEAR_DECAY, wsd,
       "WSD"}};
  for (const auto& [field, set, used, kinds] : rules) {
    if (set && !used) {
      return FieldError(
          field, absl::StrCat("is for kind ", kinds, "; with ",
                              Schedule::Kind_Name(kind), " leave it out"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDecay(const Schedule& schedule, int64_t max_steps) {
  if (!(schedule.decay_ratio() >= 0.0 && schedule.decay_ratio() <= 1.0)) {
    return FieldError("decay_ratio", absl::StrCat("must be in [0, 1], is ",
                                                  schedule.decay_ratio()));
  }
  if (!Schedule::DecayShape_IsValid(schedule.decay_shape())) {
    return FieldError("decay_shape",
                      absl::StrCat("no such value: ", schedule.decay_shape()));
  }
  const int64_t total = TotalSteps(schedule, max_steps);
  const int64_t decay = UnfittedDecaySteps(schedule, total);
  const int64_t warmup = WarmupSteps(schedule, max_steps);
  // Two ratios may both have been rounded up.
  const int64_t allowed = schedule.has_decay_steps() ? total : total + 1;
  if (schedule.kind() == Schedule::WSD && decay + warmup > allowed) {
    return FieldError(
        schedule.has_decay_steps() ? "decay_steps" : "decay_ratio",
        absl::StrCat("a decay of ", decay, " steps after a warm-up of ", warmup,
                     " is more than the schedule's ", total, " steps"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t StepsOfRun(const Train& train, int64_t samples,
                   int64_t global_batch_size) {
  if (train.max_epochs() <= 0) return train.max_steps();
  return static_cast<int64_t>(
      std::ceil(train.max_epochs() * static_cast<double>(samples) /
                static_cast<double>(global_batch_size)));
}

int64_t TotalSteps(const Schedule& schedule, int64_t max_steps) {
  return schedule.total_steps() > 0 ? schedule.total_steps() : max_steps;
}

int64_t WarmupSteps(const Schedule& schedule, int64_t max_steps) {
  if (schedule.warmup_ratio() <= 0) return schedule.warmup_steps();
  return RoundedUp(schedule.warmup_ratio(), TotalSteps(schedule, max_steps));
}

int64_t DecaySteps(const Schedule& schedule, int64_t max_steps) {
  const int64_t total = TotalSteps(schedule, max_steps);
  return std::min(UnfittedDecaySteps(schedule, total),
                  total - WarmupSteps(schedule, max_steps));
}

double LearningRateMultiplier(const Schedule& schedule, int64_t step,
                              int64_t max_steps) {
  const int64_t total = TotalSteps(schedule, max_steps);
  if (schedule.kind() == Schedule::ONE_CYCLE) {
    return OneCycle(schedule, static_cast<double>(step),
                    static_cast<double>(total));
  }
  const int64_t warmup = WarmupSteps(schedule, max_steps);
  if (step < warmup) {
    return static_cast<double>(step) / static_cast<double>(warmup);
  }
  const int64_t begin = schedule.kind() == Schedule::WSD
                            ? total - DecaySteps(schedule, max_steps)
                            : warmup;
  if (step < begin) return 1.0;
  const double decay_steps =
      static_cast<double>(std::max<int64_t>(1, total - begin));
  const double progress =
      std::min(1.0, static_cast<double>(step - begin) / decay_steps);
  double multiple = 1.0;
  switch (schedule.kind()) {
    case Schedule::LINEAR:
      multiple = 1.0 - progress;
      break;
    case Schedule::COSINE:
      multiple = 0.5 * (1.0 + std::cos(M_PI * progress));
      break;
    case Schedule::WSD:
      multiple = 1.0 - (schedule.decay_shape() == Schedule::SQRT_DECAY
                            ? std::sqrt(progress)
                            : progress);
      break;
    default:
      return 1.0;
  }
  return schedule.min_ratio() + (1.0 - schedule.min_ratio()) * multiple;
}

bool SameFactors(const Schedule& a, int64_t a_max_steps, const Schedule& b,
                 int64_t b_max_steps, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    if (LearningRateMultiplier(a, step, a_max_steps) !=
        LearningRateMultiplier(b, step, b_max_steps)) {
      return false;
    }
  }
  return true;
}

absl::Status CheckSchedule(const Schedule& schedule, int64_t max_steps) {
  if (!Schedule::Kind_IsValid(schedule.kind())) {
    return FieldError("kind", absl::StrCat("no such value: ", schedule.kind()));
  }
  if (!(schedule.warmup_ratio() >= 0.0 && schedule.warmup_ratio() <= 1.0)) {
    return FieldError("warmup_ratio", absl::StrCat("must be in [0, 1], is ",
                                                   schedule.warmup_ratio()));
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
  CAPSTAN_RETURN_IF_ERROR(CheckFieldsOfKind(schedule));
  return CheckDecay(schedule, max_steps);
}

}  // namespace capstan
