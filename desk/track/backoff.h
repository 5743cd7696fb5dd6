// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_TRACK_BACKOFF_H_
#define CAPSTAN_DESK_TRACK_BACKOFF_H_

#include <algorithm>
#include <cmath>
#include <random>

namespace capstan::track {

// How long to wait after a request that failed, and `failures` ones before it:
// from half a second, or `first` if that is less, to a minute, each by chance
// up to a half less, so that trackers that an outage has stopped don't come
// back all at once.
inline double BackoffSeconds(int failures, double first = 0.5) {
  static std::minstd_rand random{std::random_device{}()};
  const double most = std::min(
      60.0, std::min(0.5, first) * std::pow(2.0, std::min(failures, 20)));
  return most * std::uniform_real_distribution<double>(0.5, 1.0)(random);
}

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_BACKOFF_H_
