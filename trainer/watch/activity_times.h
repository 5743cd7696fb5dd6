// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_WATCH_ACTIVITY_TIMES_H_
#define CAPSTAN_TRAINER_WATCH_ACTIVITY_TIMES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace capstan {

// How long a run's activities take, and from when on one of them takes too
// long. One thread.
class ActivityTimes {
 public:
  // Of the last so many durations the second longest counts, this many times:
  // a single one, such as the first, or a hang that has passed, teaches
  // nothing.
  static constexpr size_t kRemembered = 64;
  static constexpr int64_t kFactor = 8;

  ActivityTimes(int64_t floor_ns, int64_t ceiling_ns)
      : floor_ns_(floor_ns), ceiling_ns_(ceiling_ns) {}

  void Add(const std::string& activity, int64_t ns);
  // Between floor and ceiling; the ceiling for what has never been done.
  int64_t Limit(const std::string& activity) const;

 private:
  const int64_t floor_ns_;
  const int64_t ceiling_ns_;
  std::map<std::string, std::deque<int64_t>> times_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_WATCH_ACTIVITY_TIMES_H_
