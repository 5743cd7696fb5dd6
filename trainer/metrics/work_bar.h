// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_METRICS_WORK_BAR_H_
#define CAPSTAN_TRAINER_METRICS_WORK_BAR_H_

#include <chrono>
#include <string>

#include "absl/strings/string_view.h"
#include "trainer/metrics/console.h"

namespace capstan {

// Progress of long work other than training: a bar on a terminal, removed at
// the end; elsewhere an occasional line.
class WorkBar {
 public:
  // `what` is the activity: "collecting".
  WorkBar(std::string what, int fd);
  ~WorkBar();
  WorkBar(const WorkBar&) = delete;
  WorkBar& operator=(const WorkBar&) = delete;

  // `done` is the completed fraction, in [0, 1], with a few words on it. May be
  // called as often as you like.
  void Show(double done, absl::string_view words);
  double Seconds() const;

 private:
  using Clock = std::chrono::steady_clock;

  const std::string what_;
  const Console console_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
  bool drawn_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_WORK_BAR_H_
