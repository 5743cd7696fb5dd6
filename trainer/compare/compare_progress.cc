// SPDX-License-Identifier: Apache-2.0
#include "trainer/compare/compare_progress.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/metrics/number_text.h"
#include "trainer/metrics/progress_bar.h"

namespace capstan {
namespace {

constexpr char kClearLine[] = "\r\x1b[K";
// Fits "bf16 on 2 ranks" and a strategy's name.
constexpr int kLabelWidth = 28;

double SecondsSince(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - time)
      .count();
}

}  // namespace

CompareProgress::CompareProgress(const Console* console, int runs,
                                 int64_t steps_a_run)
    : console_(console),
      runs_(runs),
      steps_a_run_(steps_a_run),
      start_(Clock::now()) {}

CompareProgress::~CompareProgress() { End(); }

void CompareProgress::BeginRun(const ComparedRun& run) {
  label_ = run.Label();
  run_start_ = Clock::now();
  Step(NewestStep());
}

void CompareProgress::Step(const NewestStep& newest) {
  if (!console_->terminal()) return;
  Progress progress;
  progress.step = ended_ * steps_a_run_ + newest.step;
  progress.max_steps = runs_ * steps_a_run_;
  progress.loss = newest.loss;
  progress.lr = newest.lr;
  progress.tokens_per_second = newest.tokens_per_second;
  progress.unit = newest.unit;
  if (progress.step > 0) {
    progress.seconds_left = SecondsSince(start_) / progress.step *
                            (progress.max_steps - progress.step);
  }
  const std::string label =
      absl::StrCat("run ", ended_ + 1, "/", runs_, " ", label_, "  ");
  if (newest.step == 0) {  // no loss to show yet
    console_->Write(absl::StrCat(
        kClearLine,
        absl::StrCat(label, "starting").substr(0, console_->Columns() - 1)));
    drawn_ = true;
    return;
  }
  // Leaves one column free: a cursor past the last one may wrap.
  const int room = console_->Columns() - 1 - static_cast<int>(label.size());
  console_->Write(absl::StrCat(
      kClearLine, room >= 20 ? label : "",
      ProgressLine(progress, room >= 20 ? room : console_->Columns() - 1)));
  drawn_ = true;
}

void CompareProgress::EndRun(const ComparedRun& run) {
  ++ended_;
  std::string line =
      absl::StrFormat("%*d/%d  %-*s  ", absl::StrCat(runs_).size(), ended_,
                      runs_, kLabelWidth, run.Label());
  if (run.status == ComparedRun::Status::kCompleted) {
    absl::StrAppendFormat(
        &line, "final loss %.4f  %s %s/s  %s", run.measured.loss.back(),
        WithCommas(std::llround(run.measured.tokens_per_second)),
        run.measured.unit, ShortDuration(SecondsSince(run_start_)));
  } else {
    absl::StrAppend(&line, "failed: ", run.reason);
  }
  if (drawn_) console_->Write(kClearLine);
  drawn_ = false;
  console_->Write(absl::StrCat(line, "\n"));
}

void CompareProgress::End() {
  if (drawn_) console_->Write("\n");
  drawn_ = false;
}

}  // namespace capstan
