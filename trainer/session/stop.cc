// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/stop.h"

#include <signal.h>

#include <algorithm>

#include "absl/types/span.h"
#include "base/status.h"
#include "trainer/checkpoint/agree.h"
#include "trainer/launcher/launcher.h"

namespace capstan {
namespace {

constexpr double kSecondsBetweenVotes = 0.1;

}  // namespace

bool StopPoll::Ask() {
  if (group_ == nullptr) return StopRequested() != 0;
  if (stop_ || --left_ > 0) return stop_;
  const auto now = std::chrono::steady_clock::now();
  double sums[] = {StopRequested() != 0 ? 1.0 : 0.0,
                   std::chrono::duration<double>(now - voted_).count()};
  group_->AllReduceHost(absl::MakeSpan(sums));
  voted_ = now;
  stop_ = sums[0] > 0;
  const double seconds_a_round =
      std::max(sums[1] / group_->size() / static_cast<double>(rounds_), 1e-6);
  // At most doubled: rounds get longer as a text grows.
  rounds_ = std::clamp<int64_t>(
      static_cast<int64_t>(kSecondsBetweenVotes / seconds_a_round), 1,
      2 * rounds_);
  left_ = rounds_;
  return stop_;
}

absl::Status StopStatus() {
  return StopRequested() != 0 ? absl::CancelledError("stopped by a signal")
                              : absl::OkStatus();
}

absl::Status AgreeOnStop(ProcessGroup& group, const absl::Status& mine,
                         const char* what) {
  const bool stopped = absl::IsCancelled(mine);
  CAPSTAN_RETURN_IF_ERROR(
      AgreeOnError(group, stopped ? absl::OkStatus() : mine, what));
  double stops[] = {stopped ? 1.0 : 0.0};
  try {
    group.AllReduceHost(absl::MakeSpan(stops));
  } catch (...) {
    return CurrentExceptionToStatus();
  }
  if (stops[0] == 0) return absl::OkStatus();
  AdoptStop(SIGTERM);
  return absl::CancelledError("stopped by a signal");
}

}  // namespace capstan
