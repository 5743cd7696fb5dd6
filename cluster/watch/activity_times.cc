// SPDX-License-Identifier: Apache-2.0
#include "cluster/watch/activity_times.h"

#include <algorithm>
#include <vector>

namespace capstan {

void ActivityTimes::Add(const std::string& activity, int64_t ns) {
  std::deque<int64_t>& times = times_[activity];
  times.push_back(ns);
  if (times.size() > kRemembered) times.pop_front();
}

int64_t ActivityTimes::Limit(const std::string& activity) const {
  const auto found = times_.find(activity);
  if (found == times_.end()) return ceiling_ns_;
  std::vector<int64_t> times(found->second.begin(), found->second.end());
  std::sort(times.begin(), times.end());
  const int64_t counts =
      times[times.size() - std::min<size_t>(2, times.size())];
  if (counts > ceiling_ns_ / kFactor) return ceiling_ns_;
  return std::max(floor_ns_, counts * kFactor);
}

}  // namespace capstan
