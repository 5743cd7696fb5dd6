// SPDX-License-Identifier: Apache-2.0
//
// How far a run is, on standard output.
#ifndef CAPSTAN_TRAINER_METRICS_PROGRESS_BAR_H_
#define CAPSTAN_TRAINER_METRICS_PROGRESS_BAR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/reporter.h"
#include "trainer/metrics/time_left.h"

namespace capstan {

// What the bar shows.
struct Progress {
  int64_t step = 0;
  int64_t max_steps = 0;
  double loss = 0.0;
  double lr = 0.0;
  double tokens_per_second = 0.0;  // of `unit`
  std::string unit = kTokenUnit;
  double seconds_left = -1.0;  // negative: not known yet
  int64_t skipped = 0;         // steps without an update so far
  double evaluated = -1.0;     // part of an evaluation, negative: in none
};

// One line of at most `columns` characters, ASCII, without a newline. Where
// there isn't room for all, the bar goes first, then the skipped steps, lr,
// tokens/s, ETA and loss.
std::string ProgressLine(const Progress& progress, int columns);

// On a terminal one line that is redrawn at most ten times a second; elsewhere
// a plain line every log_every steps and at the last step. One thread.
class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  // `console` must outlive it.
  ProgressBar(const Console* console, const RunFacts& facts,
              std::function<Clock::time_point()> now = Clock::now);
  // Ends the line if End has not been called, so that an error message begins
  // on a line of its own.
  ~ProgressBar();

  void Step(const StepMetrics& metrics);
  // The part of an evaluation that is done; until the next step. On a terminal
  // only.
  void Evaluating(double done);
  // Whole lines, each with its newline, where the bar was; the bar follows
  // below.
  void PrintAbove(absl::string_view lines);
  // Shows the last step, and leaves it on the screen.
  void End();

 private:
  // Takes what has gathered since the last call into what is shown.
  void Update(Clock::time_point now);
  void Draw();
  void PrintPlainLine();

  const Console* const console_;
  const std::function<Clock::time_point()> now_;
  const int64_t log_every_;
  Progress progress_;
  double grad_norm_ = 0.0;
  int64_t last_shown_step_;
  bool drawn_ = false;  // the cursor stands behind the bar

  TimeLeft time_left_;
  // Since the last update: a terminal's with each drawing, a plain line's with
  // each line.
  Clock::time_point last_update_;
  Clock::time_point last_evaluating_;
  double new_tokens_ = 0.0;
  double new_step_seconds_ = 0.0;
  // Sums whose past fades away, so that the rate follows the run.
  double tokens_ = 0.0;
  double step_seconds_ = 0.0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_PROGRESS_BAR_H_
