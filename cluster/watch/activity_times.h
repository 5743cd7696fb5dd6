// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_WATCH_ACTIVITY_TIMES_H_
#define CAPSTAN_CLUSTER_WATCH_ACTIVITY_TIMES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>

namespace capstan {

// Records how long a run's activities take, and decides when one takes too
// long. Used by one thread.
class ActivityTimes {
 public:
  // The limit is kFactor times the second longest of the last kRemembered
  // durations, so that a single outlier, such as the first one or a hang that
  // has passed, doesn't count.
  static constexpr size_t kRemembered = 64;
  static constexpr int64_t kFactor = 8;

  ActivityTimes(int64_t floor_ns, int64_t ceiling_ns)
      : floor_ns_(floor_ns), ceiling_ns_(ceiling_ns) {}

  void Add(const std::string& activity, int64_t ns);
  // Returns a limit between floor and ceiling; the ceiling for an activity that
  // has never been done.
  int64_t Limit(const std::string& activity) const;

 private:
  const int64_t floor_ns_;
  const int64_t ceiling_ns_;
  std::map<std::string, std::deque<int64_t>> times_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_ACTIVITY_TIMES_H_
