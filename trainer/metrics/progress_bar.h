// SPDX-License-Identifier: Apache-2.0
//
// Progress and remaining time of a run, on standard output.
#ifndef CAPSTAN_TRAINER_METRICS_PROGRESS_BAR_H_
#define CAPSTAN_TRAINER_METRICS_PROGRESS_BAR_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"

namespace capstan {

// Mean of the most recent values, excluding outliers.
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

// Estimates the remaining time. Steps, evaluations and checkpoints are measured
// separately and weighted by how many are still to come, so that an evaluation
// among few steps doesn't make the rest look slow. Text generation counts
// towards its evaluation. Times are seconds of any clock.
class TimeLeft {
 public:
  explicit TimeLeft(const RunFacts& facts);

  // A step ended at `now`, having taken `seconds` itself.
  void Step(int64_t step, double now, double seconds);
  // From the end of that step to the end of the run; negative: unknown.
  double Seconds() const;
  void SetEnd(int64_t max_steps) { max_steps_ = max_steps; }

 private:
  // Records the time between the last step and this one.
  void Pause(double seconds);

  int64_t max_steps_;
  const int64_t eval_every_;
  const int64_t save_every_;
  int64_t step_ = -1;  // the last; negative: none yet
  double ended_ = 0.0;
  RecentMean steps_;
  RecentMean evaluations_;
  RecentMean saves_;
};

// What the bar shows.
struct Progress {
  int64_t step = 0;
  int64_t max_steps = 0;
  double loss = 0.0;
  // The objective's first metric, "reward 0.9063", when it was last known; "":
  // none.
  std::string metric;
  double lr = 0.0;
  double tokens_per_second = 0.0;  // of `unit`
  std::string unit = kTokenUnit;
  double seconds_left = -1.0;  // negative: unknown
  int64_t skipped = 0;         // steps without an update so far
  absl::optional<double> mfu;
  absl::optional<GpuMemory> gpu_memory;
  double evaluated = -1.0;  // fraction of an evaluation; negative: none running
};

// One line of at most `columns` ASCII characters, without newline. If space is
// short, drops the bar first, then the GPU's memory, MFU, the metric, skipped
// steps, lr, tokens/s, ETA and loss.
std::string ProgressLine(const Progress& progress, int columns);

// On a terminal, a line redrawn at most ten times a second; elsewhere a plain
// line every log_every steps and at the last step. One thread.
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  // `console` must outlive it.
  ProgressBar(const Console* console, const RunFacts& facts,
              std::function<Clock::time_point()> now = Clock::now);
  // Ends the line if End wasn't called, so that an error message starts on a
  // line of its own.
  ~ProgressBar();

  void Step(const StepMetrics& metrics);
  // Shows the fraction of an evaluation that is done, until the next step. Only
  // on a terminal.
  void Evaluating(double done);
  // The run's steps, in the place of facts.max_steps.
  void SetEnd(int64_t max_steps) {
    progress_.max_steps = max_steps;
    time_left_.SetEnd(max_steps);
  }
  // Prints whole lines, newlines included, in place of the bar and redraws it
  // below.
  void PrintAbove(absl::string_view lines);
  // Shows the last step and leaves it on the screen.
  void End();

 private:
  // Includes what has accumulated since the last call in what is shown.
  void Update(Clock::time_point now);
  void Draw();
  void PrintPlainLine();

  const Console* const console_;
  const std::function<Clock::time_point()> now_;
  const int64_t log_every_;
  Progress progress_;
  double grad_norm_ = 0.0;
  int64_t last_shown_step_;
  bool drawn_ = false;  // the cursor is after the bar

  TimeLeft time_left_;
  // Since the last update: each redraw on a terminal, else each plain line.
  Clock::time_point last_update_;
  Clock::time_point last_evaluating_;
  double new_tokens_ = 0.0;
  double new_mfu_ = 0.0;  // times seconds, like mfu_
  double new_step_seconds_ = 0.0;
  // Exponentially decaying sums, so that the rate follows the run.
  double tokens_ = 0.0;
  double mfu_ = 0.0;
  double step_seconds_ = 0.0;
};

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

#endif  // CAPSTAN_TRAINER_METRICS_PROGRESS_BAR_H_
