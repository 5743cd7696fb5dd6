// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/slow_hosts.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/launch/network.h"
#include "cluster/launch/progress.h"
#include "trainer/metrics/event_log.h"

namespace capstan {
namespace {

constexpr int64_t kDefaultSteps = 50;
constexpr char kLeftOutFile[] = "/hosts_left_out.txt";

}  // namespace

void LeaveOutHost(const Session& session, const std::string& host, int node,
                  const std::string& why, const char* kind) {
  const Launch& launch = session.config.launch();
  const int local = session.rank.local_world_size;
  const int least = launch.max_processes() > 0
                        ? std::max<int>(launch.min_processes(), local)
                        : launch.min_processes();
  if (session.rank.nodes < 2 || node < 0 || launch.max_restarts() == 0 ||
      least == 0 || session.group->size() - local < least) {
    return;
  }
  session.Note(absl::StrCat("warning: ", why, ": the run goes on without"),
               kind);
  if (session.group->rank() == 0) {
    const std::string path = session.output_dir + kLeftOutFile;
    const std::string before = ReadWholeFile(path).value_or("");
    // The event tells it, too.
    ReplaceFile(path, absl::StrCat(before, host, "\n")).IgnoreError();
  }
  NoteHostsGone(absl::StrCat(node));
  // Once it is written.
  AnyRank(*session.group, false).status().IgnoreError();
  _exit(1);
}

absl::Status CheckSlowHosts(const Launch& launch) {
  const double factor = launch.slow_host_factor();
  if (factor != 0.0 && !(factor > 1.0 && std::isfinite(factor))) {
    return FieldError(
        "slow_host_factor",
        absl::StrCat("must be above 1, or 0 for never; is ", factor));
  }
  if (launch.slow_host_steps() < 0) {
    return FieldError(
        "slow_host_steps",
        absl::StrCat("must not be negative, is ", launch.slow_host_steps()));
  }
  return absl::OkStatus();
}

absl::optional<SlowHost> FindSlowHost(const std::vector<double>& seconds,
                                      int ranks_per_host, double factor) {
  std::vector<double> hosts;
  for (size_t first = 0; first < seconds.size(); first += ranks_per_host) {
    hosts.push_back(*std::max_element(
        seconds.begin() + first, seconds.begin() + first + ranks_per_host));
  }
  std::vector<double> sorted = hosts;
  const auto middle = sorted.begin() + (sorted.size() - 1) / 2;
  std::nth_element(sorted.begin(), middle, sorted.end());
  const double median = *middle;
  const auto slowest = std::max_element(hosts.begin(), hosts.end());
  if (median <= 0.0 || *slowest < factor * median) return absl::nullopt;
  return SlowHost{static_cast<int>(slowest - hosts.begin()), *slowest / median};
}

double SlowHosts::Waited() const {
  return session_.group->stats().exposed_seconds;
}

void SlowHosts::StepBegins() {
  began_ = MonotonicSeconds();
  waited_before_ = Waited();
}

void SlowHosts::StepEnds() {
  seconds_ += MonotonicSeconds() - began_ - (Waited() - waited_before_);
}

bool SlowHosts::Due() const {
  const Launch& launch = session_.config.launch();
  return launch.slow_host_factor() > 0 && session_.rank.nodes > 1 &&
         session_.GoesOn() &&
         capstan::Due(launch.slow_host_steps() > 0 ? launch.slow_host_steps()
                                                   : kDefaultSteps,
                      session_.state.step);
}

absl::Status SlowHosts::Judge() {
  const double mine = std::exchange(seconds_, 0.0);
  std::vector<double> seconds;
  std::vector<std::string> hosts;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    seconds = AllGatherHost(*session_.group, std::vector<double>{mine});
    hosts = FromAllRanks(*session_.group, HostName());
    return absl::OkStatus();
  }));
  const int ranks = session_.rank.local_world_size;
  const double factor = session_.config.launch().slow_host_factor();
  const auto slow = FindSlowHost(seconds, ranks, factor);
  const int now = slow.has_value() ? slow->node : -1;
  // Once may be what else the host has to do.
  if (std::exchange(slow_, now) != now || now < 0) return absl::OkStatus();
  const std::string& host = hosts[slow->node * ranks];
  const std::string why = absl::StrFormat(
      "host %s (number %d) has computed %.2g times as long as the median host, "
      "%.2g s (launch.slow_host_factor)",
      host, slow->node, slow->times, seconds[slow->node * ranks]);
  LeaveOutHost(session_, host, slow->node, why, kWarningEvent);
  if (!std::exchange(told_, true)) {
    session_.Note(absl::StrCat("warning: ", why,
                               "; the run can't go on without it "
                               "(launch.max_restarts, min_processes)"));
  }
  return absl::OkStatus();
}

}  // namespace capstan
