// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/phase_clock.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/clock.h"

namespace capstan {
namespace {

double OnCoreSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

int IndexOf(absl::string_view phase) {
  const auto found = std::find(kTimedPhases.begin(), kTimedPhases.end(), phase);
  return found == kTimedPhases.end()
             ? -1
             : static_cast<int>(found - kTimedPhases.begin());
}

// Whether the thread computes in that phase, rather than waits for others.
bool Computes(int phase) { return phase >= IndexOf(kForwardPhase); }

}  // namespace

void PhaseClock::Start(const ProcessGroup* group) {
  group_ = group;
  on_cpu_ = group->device().is_cpu();
}

PhaseClock::Now PhaseClock::Read() const {
  Now now;
  now.seconds = MonotonicSeconds();
  if (!on_cpu_) return now;
  now.on_core = OnCoreSeconds();
  now.exposed = group_->stats().exposed_seconds;
  return now;
}

void PhaseClock::Enter(const char* phase) {
  if (group_ == nullptr) return;
  const Now now = Read();
  if (current_ >= 0) {
    const double wall = now.seconds - since_.seconds;
    // What an engine's thread waits for may overlap with this one's work.
    const double own = wall - std::min(wall, now.exposed - since_.exposed);
    spent_.of[current_] += own;
    if (on_cpu_ && Computes(current_)) {
      spent_.off_core += std::max(0.0, own - (now.on_core - since_.on_core));
    }
  }
  since_ = now;
  current_ = IndexOf(phase);
}

PhaseSeconds PhaseClock::Take() { return std::exchange(spent_, {}); }

}  // namespace capstan
