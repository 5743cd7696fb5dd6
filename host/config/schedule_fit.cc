// SPDX-License-Identifier: Apache-2.0
#include "host/config/schedule_fit.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace capstan {

void ScheduleFit::Update(const LoadedConfig& loaded) {
  for (Part* part : {&warmup_, &decay_}) {
    const auto place = loaded.locations.find(part->path + "_steps");
    if (place == loaded.locations.end() || place->second == part->place) {
      continue;
    }
    part->place = place->second;
    part->written_for = loaded.config.train().max_steps();
  }
}

void ScheduleFit::Apply(LoadedConfig* loaded) const {
  if (!loaded->config.has_schedule()) return;
  Schedule& schedule = *loaded->config.mutable_schedule();
  if (schedule.total_steps() > 0) return;
  const bool epochs = loaded->config.train().max_epochs() > 0;
  const int64_t steps = loaded->config.train().max_steps();
  const bool default_decay = schedule.kind() == Schedule::WSD &&
                             !schedule.has_decay_steps() &&
                             !schedule.has_decay_ratio();
  const double decay_ratio =
      default_decay ? kDefaultDecayRatio : schedule.decay_ratio();
  const auto all = static_cast<double>(steps);
  const double taken =
      static_cast<double>(schedule.warmup_steps() + schedule.decay_steps()) +
      std::ceil(schedule.warmup_ratio() * all) + std::floor(decay_ratio * all);
  if (!epochs && (steps <= 0 || taken <= all)) return;
  for (const Part* part : {&warmup_, &decay_}) {
    const bool warmup = part == &warmup_;
    const int64_t count =
        warmup ? schedule.warmup_steps() : schedule.decay_steps();
    if (count <= 0 || count > part->written_for) continue;
    const auto written_for = static_cast<double>(part->written_for);
    if (epochs) {
      // The number of steps in epochs is known once the data is.
      const double ratio = static_cast<double>(count) / written_for;
      warmup ? schedule.set_warmup_ratio(ratio)
             : schedule.set_decay_ratio(ratio);
      loaded->notes.push_back(
          absl::StrCat(part->path, "_ratio is ", ratio, ", as the ", count,
                       " of ", part->written_for, " steps at ", part->place));
    } else if (steps < part->written_for) {
      // Rounded up, like warmup_ratio; down, so that there is room for that.
      const double scaled = static_cast<double>(count) * all / written_for;
      const auto whole =
          static_cast<int64_t>(warmup ? std::ceil(scaled) : std::floor(scaled));
      warmup ? schedule.set_warmup_steps(whole)
             : schedule.set_decay_steps(whole);
      loaded->notes.push_back(
          absl::StrCat(part->path, "_steps is ", whole, " of ", steps,
                       " steps, in proportion to the ", count, " of ",
                       part->written_for, " at ", part->place));
    }
  }
}

}  // namespace capstan
