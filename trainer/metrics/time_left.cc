// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/time_left.h"

#include <algorithm>
#include <vector>

namespace capstan {
namespace {

constexpr size_t kSteps = 100;
constexpr size_t kPauses = 8;
// Times the median: a value beyond it is an accident.
constexpr double kFar = 5.0;

bool Due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

// How often something comes from the end of `step` on, which the run's end does
// in any case.
int64_t Count(int64_t every, int64_t step, int64_t max_steps) {
  if (every <= 0) return 0;
  return (max_steps + every - 1) / every - step / every +
         (Due(every, step) ? 1 : 0);
}

}  // namespace

void RecentMean::Add(double value) {
  values_.push_back(value);
  if (values_.size() > most_) values_.pop_front();
}

double RecentMean::Get() const {
  if (values_.empty()) return 0.0;
  std::vector<double> sorted(values_.begin(), values_.end());
  std::sort(sorted.begin(), sorted.end());
  const double bound = kFar * sorted[sorted.size() / 2];
  double sum = 0.0;
  int count = 0;
  for (const double value : sorted) {
    if (value > bound) break;
    sum += value;
    ++count;
  }
  return sum / count;
}

TimeLeft::TimeLeft(const RunFacts& facts)
    : max_steps_(facts.max_steps),
      eval_every_(facts.eval_every),
      save_every_(facts.save_every),
      steps_(kSteps),
      evaluations_(kPauses),
      saves_(kPauses) {}

void TimeLeft::Step(int64_t step, double now, double seconds) {
  if (step_ >= 0) {
    const double between = std::max(0.0, now - ended_ - seconds);
    if (Due(eval_every_, step_) || Due(save_every_, step_)) {
      Pause(between);
    } else {
      seconds += between;
    }
  }
  steps_.Add(seconds);
  step_ = step;
  ended_ = now;
}

void TimeLeft::Pause(double seconds) {
  if (!Due(eval_every_, step_)) {
    saves_.Add(seconds);
    return;
  }
  // Where they always come together this is the time of both.
  const double save = Due(save_every_, step_) ? saves_.Get() : 0.0;
  evaluations_.Add(std::max(0.0, seconds - save));
}

double TimeLeft::Seconds() const {
  if (step_ < 0) return -1.0;
  const auto times = [this](int64_t every) {
    return static_cast<double>(Count(every, step_, max_steps_));
  };
  return static_cast<double>(std::max<int64_t>(0, max_steps_ - step_)) *
             steps_.Get() +
         times(eval_every_) * evaluations_.Get() +
         times(save_every_) * saves_.Get();
}

}  // namespace capstan
