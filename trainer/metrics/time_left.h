// SPDX-License-Identifier: Apache-2.0
//
// How long a run will still take.
#ifndef CAPSTAN_TRAINER_METRICS_TIME_LEFT_H_
#define CAPSTAN_TRAINER_METRICS_TIME_LEFT_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "trainer/metrics/reporter.h"

namespace capstan {

// The mean of the newest values, without those that are far from the rest.
class RecentMean {
 public:
  explicit RecentMean(size_t most) : most_(most) {}
  void Add(double value);
  bool empty() const { return values_.empty(); }
  // 0 if empty.
  double Get() const;

 private:
  const size_t most_;
  std::deque<double> values_;
};

// Steps and what comes between them, evaluations and checkpoints, are measured
// apart, and each counts as often as it will still come: an evaluation among a
// few steps doesn't make the rest look slow. A text that the model writes
// belongs to its evaluation. All times are seconds, of any clock.
class TimeLeft {
 public:
  explicit TimeLeft(const RunFacts& facts);

  // A step has ended at `now`, after taking `seconds` itself.
  void Step(int64_t step, double now, double seconds);
  // From the end of that step to the end of the run; negative: not known yet.
  double Seconds() const;

 private:
  // What came between the last step and this one.
  void Pause(double seconds);

  const int64_t max_steps_;
  const int64_t eval_every_;
  const int64_t save_every_;
  int64_t step_ = -1;  // the last; negative: none yet
  double ended_ = 0.0;
  RecentMean steps_;
  RecentMean evaluations_;
  RecentMean saves_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_TIME_LEFT_H_
