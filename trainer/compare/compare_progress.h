// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMPARE_COMPARE_PROGRESS_H_
#define CAPSTAN_TRAINER_COMPARE_COMPARE_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "trainer/compare/comparison.h"
#include "trainer/compare/run_files.h"
#include "trainer/metrics/console.h"

namespace capstan {

// Progress on standard output: a line per completed run and, on a terminal, a
// bar over the steps of all runs below them. One thread.
class CompareProgress {
 public:
  // `console` must outlive it.
  CompareProgress(const Console* console, int runs, int64_t steps_a_run);
  ~CompareProgress();

  void BeginRun(const ComparedRun& run);
  void Step(const NewestStep& newest);
  // Call once `run` has its status and measurements.
  void EndRun(const ComparedRun& run);
  // Leaves the bar on the screen, with the cursor below it.
  void End();

 private:
  using Clock = std::chrono::steady_clock;

  const Console* const console_;
  const int runs_;
  const int64_t steps_a_run_;
  const Clock::time_point start_;
  Clock::time_point run_start_;
  std::string label_;
  int ended_ = 0;
  bool drawn_ = false;  // the cursor is after the bar
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_COMPARE_PROGRESS_H_
