// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

constexpr size_t kSteps = 100;
constexpr size_t kPauses = 8;
// Values beyond this multiple of the median are outliers.
constexpr double kFar = 5.0;

bool Due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

// Occurrences after `step`, including the one at the end of the run.
int64_t Count(int64_t every, int64_t step, int64_t max_steps) {
  if (every <= 0) return 0;
  return (max_steps + every - 1) / every - step / every +
         (Due(every, step) ? 1 : 0);
}

constexpr std::chrono::milliseconds kRedrawEvery(100);
// Time constant of the rates.
constexpr double kRateSeconds = 15.0;
constexpr int kMinBar = 10;
constexpr int kMaxBar = 40;
constexpr char kClearLine[] = "\r\x1b[K";

std::string Bar(const Progress& progress, int width) {
  const double done =
      progress.max_steps > 0
          ? static_cast<double>(progress.step) / progress.max_steps
          : 1.0;
  const int inside = width - 2;
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * inside);
  std::string bar = absl::StrCat("[", std::string(filled, '='),
                                 std::string(inside - filled, ' '), "]");
  if (filled < inside) bar[1 + filled] = '>';
  return bar;
}

std::string Fraction(const Progress& progress) {
  const std::string total = absl::StrCat(progress.max_steps);
  return absl::StrFormat("step %*d/%s", static_cast<int>(total.size()),
                         progress.step, total);
}

// "MFU 41.2 %" and "GPU 61.2 GiB of 66.0 GiB": tensors' of what is reserved.
std::vector<std::string> GpuFields(const Progress& progress) {
  std::vector<std::string> fields;
  if (progress.mfu.has_value()) {
    fields.push_back(absl::StrFormat("MFU %.1f %%", 100.0 * *progress.mfu));
  }
  if (progress.gpu_memory.has_value()) {
    fields.push_back(
        absl::StrCat("GPU ", ShortBytes(progress.gpu_memory->peak_allocated),
                     " of ", ShortBytes(progress.gpu_memory->reserved)));
  }
  return fields;
}

// Of a WorkBar: between lines elsewhere than on a terminal; width.
constexpr std::chrono::seconds kLineEvery(10);
constexpr int kBar = 30;

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
  // If they always coincide, this is the time of both.
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

std::string ProgressLine(const Progress& progress, int columns) {
  // In display order; the number is the order of dropping, from the highest.
  struct Field {
    int priority;
    std::string text;
  };
  std::vector<Field> fields = {
      {0, Fraction(progress)},
      {1, absl::StrFormat("loss %.4f", progress.loss)},
      {4, absl::StrFormat("lr %.2e", progress.lr)},
      {3, absl::StrCat(ShortCount(progress.tokens_per_second), " ",
                       progress.unit, "/s")},
      {2, progress.evaluated < 0.0
              ? absl::StrCat("ETA ", ClockTime(progress.seconds_left))
              : absl::StrFormat("evaluating %2.0f %%",
                                100.0 * progress.evaluated)}};
  if (progress.skipped > 0) {
    fields.push_back({5, absl::StrCat("skipped ", progress.skipped)});
  }
  if (!progress.metric.empty()) {
    fields.insert(fields.begin() + 2,
                  {static_cast<int>(fields.size()), progress.metric});
  }
  for (const std::string& text : GpuFields(progress)) {
    fields.push_back({static_cast<int>(fields.size()), text});
  }
  const auto join = [&fields](int priorities) {
    std::vector<absl::string_view> shown;
    for (const Field& field : fields) {
      if (field.priority < priorities) shown.push_back(field.text);
    }
    return absl::StrJoin(shown, "  ");
  };
  int priorities = static_cast<int>(fields.size());
  std::string line = join(priorities);
  while (static_cast<int>(line.size()) > columns && priorities > 1) {
    line = join(--priorities);
  }
  if (static_cast<int>(line.size()) > columns) {
    line.resize(std::max(columns, 0));
  }
  const int room = columns - static_cast<int>(line.size()) - 1;
  if (room < kMinBar) return line;
  return absl::StrCat(Bar(progress, std::min(room, kMaxBar)), " ", line);
}

ProgressBar::ProgressBar(const Console* console, const RunFacts& facts,
                         std::function<Clock::time_point()> now)
    : console_(console),
      now_(std::move(now)),
      log_every_(std::max<int64_t>(facts.log_every, 1)),
      last_shown_step_(facts.first_step),
      time_left_(facts),
      last_update_(now_()) {
  progress_.unit = facts.unit;
  progress_.step = facts.first_step;
  progress_.max_steps = facts.max_steps;
}

ProgressBar::~ProgressBar() {
  if (drawn_) console_->Write("\n");
}

void ProgressBar::Step(const StepMetrics& metrics) {
  const Clock::time_point now = now_();
  time_left_.Step(metrics.step,
                  std::chrono::duration<double>(now.time_since_epoch()).count(),
                  metrics.step_seconds);
  progress_.evaluated = -1.0;
  progress_.step = metrics.step;
  progress_.loss = metrics.loss;
  // The objective's first; what else a step has, a witness's failures say,
  // isn't to stay in the line.
  for (const auto& [tag, value] : metrics.tagged) {
    absl::string_view name = tag;
    if (!absl::ConsumePrefix(&name, "train/")) continue;
    progress_.metric = absl::StrFormat("%s %.4f", name, value);
    break;
  }
  progress_.lr = metrics.lr;
  progress_.skipped += metrics.skipped ? 1 : 0;
  if (metrics.mfu.has_value()) {
    new_mfu_ += *metrics.mfu * metrics.step_seconds;
    progress_.mfu = metrics.mfu;  // until Update
  }
  progress_.gpu_memory = metrics.gpu_memory;
  grad_norm_ = metrics.grad_norm;
  new_tokens_ += metrics.tokens_per_second * metrics.step_seconds;
  new_step_seconds_ += metrics.step_seconds;

  const bool last = metrics.step >= progress_.max_steps;
  if (!console_->terminal()) {
    if (last || metrics.step % log_every_ == 0) {
      Update(now);
      PrintPlainLine();
    }
  } else if (last || step_seconds_ == 0.0 ||
             now - last_update_ >= kRedrawEvery) {
    Update(now);
    Draw();
  }
}

void ProgressBar::Evaluating(double done) {
  if (!console_->terminal()) return;
  const Clock::time_point now = now_();
  if (now - last_evaluating_ < kRedrawEvery) return;
  last_evaluating_ = now;
  progress_.evaluated = done;
  Draw();
}

void ProgressBar::Update(Clock::time_point now) {
  const double elapsed =
      std::chrono::duration<double>(now - last_update_).count();
  const double kept = std::exp(-elapsed / kRateSeconds);
  tokens_ = tokens_ * kept + new_tokens_;
  step_seconds_ = step_seconds_ * kept + new_step_seconds_;
  last_update_ = now;
  mfu_ = mfu_ * kept + new_mfu_;
  new_tokens_ = new_step_seconds_ = new_mfu_ = 0.0;
  if (step_seconds_ > 0.0) {
    progress_.tokens_per_second = tokens_ / step_seconds_;
    if (progress_.mfu.has_value()) progress_.mfu = mfu_ / step_seconds_;
  }
  progress_.seconds_left = time_left_.Seconds();
}

void ProgressBar::Draw() {
  // Leaves one column free: a cursor past the last one may wrap.
  const std::string line = ProgressLine(progress_, console_->Columns() - 1);
  console_->Write(absl::StrCat(kClearLine, line));
  drawn_ = true;
  last_shown_step_ = progress_.step;
}

void ProgressBar::PrintPlainLine() {
  std::string line = Fraction(progress_);
  absl::StrAppendFormat(&line, "  loss %.4f", progress_.loss);
  if (!progress_.metric.empty()) absl::StrAppend(&line, "  ", progress_.metric);
  absl::StrAppendFormat(&line, "  lr %.2e  grad norm %.3f  %s %s/s  ETA %s",
                        progress_.lr, grad_norm_,
                        WithCommas(std::llround(progress_.tokens_per_second)),
                        progress_.unit, ClockTime(progress_.seconds_left));
  if (progress_.skipped > 0) {
    absl::StrAppend(&line, "  skipped ", progress_.skipped);
  }
  for (const std::string& field : GpuFields(progress_)) {
    absl::StrAppend(&line, "  ", field);
  }
  console_->Write(absl::StrCat(line, "\n"));
  last_shown_step_ = progress_.step;
}

void ProgressBar::PrintAbove(absl::string_view lines) {
  if (!drawn_) {
    console_->Write(lines);
    return;
  }
  console_->Write(absl::StrCat(kClearLine, lines));
  Draw();
}

void ProgressBar::End() {
  if (progress_.step > last_shown_step_) {
    Update(now_());
    if (console_->terminal()) {
      Draw();
    } else {
      PrintPlainLine();
    }
  }
  if (drawn_) console_->Write("\n");
  drawn_ = false;
}

WorkBar::WorkBar(std::string what, int fd)
    : what_(std::move(what)), console_(fd) {}

WorkBar::~WorkBar() {
  if (drawn_) console_.Write(kClearLine);
}

void WorkBar::Show(double done, absl::string_view words) {
  const Clock::time_point now = Clock::now();
  const bool terminal = console_.terminal();
  if (now - last_ < (terminal ? Clock::duration(kRedrawEvery)
                              : Clock::duration(kLineEvery))) {
    return;
  }
  last_ = now;
  const std::string left =
      done > 0.0 ? ClockTime(Seconds() * (1.0 - done) / done) : "-:--";
  if (!terminal) {
    console_.Write(absl::StrFormat("%s %3.0f %%  %s  ETA %s\n", what_,
                                   100.0 * done, words, left));
    return;
  }
  const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * kBar);
  std::string line = absl::StrFormat(
      "[%s%s] %3.0f %%  %s  ETA %s", std::string(filled, '='),
      std::string(kBar - filled, ' '), 100.0 * done, words, left);
  line.resize(std::min<size_t>(line.size(), console_.Columns() - 1));
  console_.Write(absl::StrCat(kClearLine, line));
  drawn_ = true;
}

double WorkBar::Seconds() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

}  // namespace capstan
