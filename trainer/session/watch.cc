// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/watch.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "cluster/comm/agree.h"

namespace capstan {
namespace {

WatchOptions OptionsOf(const Train& train) {
  WatchOptions options;
  if (train.hang_floor_seconds() > 0) {
    options.floor_seconds = train.hang_floor_seconds();
  }
  options.ceiling_seconds =
      std::max(options.floor_seconds, train.hang_ceiling_seconds() > 0
                                          ? train.hang_ceiling_seconds()
                                          : options.ceiling_seconds);
  options.abort = train.on_hang() == Train::ABORT;
  // A slow disk or network is told of soon, but isn't the end of a run, unless
  // its owner knows better.
  constexpr double kPatience = 300.0;
  if (train.hang_floor_seconds() == 0) options.patience_seconds = kPatience;
  return options;
}

}  // namespace

double LongestHang(const Train& train) {
  const WatchOptions options = OptionsOf(train);
  if (!options.abort) return 0.0;
  // The hang is reported after the limit, and the run ended after as long
  // again.
  constexpr double kMargin = 60.0, kYear = 365.0 * 24 * 3600;
  const double limit = options.ceiling_seconds;
  return std::min(kYear,
                  limit + std::max(limit, options.patience_seconds) + kMargin);
}

absl::StatusOr<std::unique_ptr<Watchdog>> Watch(const Train& train,
                                                ProcessGroup& group) {
  absl::StatusOr<std::unique_ptr<Watchdog>> watchdog =
      Watchdog::Start(OptionsOf(train));
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, watchdog.status(), "watch over the ranks"));
  return watchdog;
}

}  // namespace capstan
