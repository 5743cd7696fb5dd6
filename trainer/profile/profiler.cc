// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/profiler.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/profile.h"
#include "base/profile_records.h"

namespace capstan {

Profiler::~Profiler() { ProfileScope::enabled_ = false; }

void Profiler::BeginStep(int64_t step,
                         const CommunicationStats& communication) {
  if (steps_.count(step) == 0) return;
  ThreadRecords::Mine().set_role(ThreadRole::kTraining);
  communication_ = communication;
  now_ = ProfiledStep();
  now_.step = step;
  now_.begin_ns = MonotonicNanoseconds();
  on_ = true;
  ProfileScope::enabled_ = true;
}

void Profiler::EndStep(const CommunicationStats& communication) {
  if (!on_) return;
  on_ = false;
  ProfileScope::enabled_ = false;
  now_.end_ns = MonotonicNanoseconds();
  const double busy = communication.busy_seconds - communication_.busy_seconds;
  const double exposed =
      communication.exposed_seconds - communication_.exposed_seconds;
  now_.hidden_seconds = std::max(0.0, busy - exposed);
  for (ThreadRecords* records : ThreadRecords::All()) {
    for (const ProfileRecord& record : records->Take()) {
      // Another thread's scope may have begun in an earlier profiled step.
      if (record.begin_ns < now_.begin_ns) continue;
      now_.records.push_back({record, records->thread(), records->role()});
    }
  }
  done_.push_back(std::move(now_));
}

}  // namespace capstan
