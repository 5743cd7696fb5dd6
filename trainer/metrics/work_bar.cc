// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/work_bar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/metrics/number_text.h"

namespace capstan {
namespace {

constexpr std::chrono::milliseconds kRedrawEvery(100);
constexpr std::chrono::seconds kLineEvery(10);
constexpr int kBar = 30;

}  // namespace

WorkBar::WorkBar(std::string what, int fd)
    : what_(std::move(what)), console_(fd) {}

WorkBar::~WorkBar() {
  if (drawn_) console_.Write("\r\x1b[K");
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
  console_.Write(absl::StrCat("\r\x1b[K", line));
  drawn_ = true;
}

double WorkBar::Seconds() const {
  return std::chrono::duration<double>(Clock::now() - begin_).count();
}

}  // namespace capstan
