// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/rank_log.h"

#include <glog/logging.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "cluster/comm/gpu_tools.h"
#include "cluster/launch/network.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kSecondsPerLine = 1.0;

// To the microsecond, which is short in JSON.
double Rounded(double seconds) { return std::round(seconds * 1e6) / 1e6; }

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) +
         1e-6 * static_cast<double>(time.tv_usec);
}

// The host's tasks that run or could: "0.20 0.18 0.12 2/345 678".
int64_t RunningThreads() {
  std::istringstream text(FirstLineIn("/proc/loadavg"));
  std::string load;
  int64_t running = 0;
  text >> load >> load >> load >> running;
  return running;
}

int64_t ResidentBytes() {
  std::istringstream text(FirstLineIn("/proc/self/statm"));
  int64_t size = 0, resident = 0;
  text >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

struct SetUpUse {
  double cpu_seconds = 0.0;
  int64_t read_bytes = 0;
};

// What our launcher did for its ranks before it forked them; 0 if unknown.
SetUpUse UseOfLauncher(const RankInfo& rank) {
  SetUpUse use;
  if (rank.own_process) return use;
  const pid_t launcher = getppid();
  use.read_bytes =
      NumberAfter(absl::StrCat("/proc/", launcher, "/io"), "read_bytes:");
  clockid_t clock = 0;
  timespec time = {};
  if (clock_getcpuclockid(launcher, &clock) == 0 &&
      clock_gettime(clock, &time) == 0) {
    use.cpu_seconds = static_cast<double>(time.tv_sec) +
                      1e-9 * static_cast<double>(time.tv_nsec);
  }
  return use;
}

}  // namespace

void RankLog::End() {
  if (steps_ > 0 || !actions_.empty()) {
    const double now = MonotonicSeconds();
    outside_ += now - since_;
    Write(now);
  }
  lines_.reset();
}

// Unknown numbers stay 0.
RankLog::Use RankLog::ReadUse() {
  Use use;
  rusage mine = {};
  getrusage(RUSAGE_SELF, &mine);
  use.cpu_seconds = Seconds(mine.ru_utime) + Seconds(mine.ru_stime);
  use.major_faults = mine.ru_majflt;
  use.read_bytes = NumberAfter("/proc/self/io", "read_bytes:");
  int64_t on_core = 0, waited = 0;
  std::istringstream(FirstLineIn("/proc/thread-self/schedstat")) >> on_core >>
      waited;
  use.runqueue_seconds = 1e-9 * static_cast<double>(waited);
  // proc(5): cpu user nice system idle iowait irq softirq steal
  std::istringstream host(FirstLineIn("/proc/stat"));
  std::string name;
  double ticks[8] = {};
  host >> name;
  for (double& number : ticks) host >> number;
  const auto per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  use.iowait_seconds = ticks[4] / per_second;
  use.steal_seconds = ticks[7] / per_second;
  return use;
}

void RankLog::Begin(double ready_seconds) {
  // A host that doesn't share the run's folder doesn't get one.
  if (!IsFolder(session_.output_dir)) return;
  const std::string folder = session_.output_dir + "/ranks";
  absl::Status made = MakeFolder(folder);
  if (made.ok()) {
    absl::StatusOr<AppendedLines> lines = AppendedLines::Open(
        absl::StrFormat("%s/rank-%05d.jsonl", folder, session_.group->rank()));
    made = lines.status();
    if (lines.ok()) lines_.emplace(*std::move(lines));
  }
  if (!made.ok()) {
    LOG(WARNING) << made.message() << ": this rank's times aren't recorded";
    return;
  }
  session_.phase.clock().Start(session_.group.get());
  WriteFacts(ready_seconds);
  used_ = ReadUse();
  since_ = written_ = MonotonicSeconds();
}

void RankLog::WriteFacts(double ready_seconds) {
  const RankInfo& rank = session_.rank;
  const at::Device device = session_.group->device();
  Json json = {{"time", UnixSeconds()},
               {"rank", session_.group->rank()},
               {"world_size", session_.group->size()},
               {"host", HostName()},
               {"pid", getpid()},
               {"device",
                device.is_cuda() ? TheGpuTools()->name(device.index()) : "CPU"},
               {"cores", AvailableCores()},
               {"threads", rank.threads},
               {"restart", rank.restart},
               {"first_step", session_.first_step},
               {"micro_batch_size", session_.job.batch.micro_batch_size}};
  if (!rank.cores.empty()) json["bound_to"] = rank.cores;
  const Use use = ReadUse();
  const SetUpUse before = UseOfLauncher(rank);
  json["ready_seconds"] = Rounded(ready_seconds);
  json["ready_cpu_seconds"] = Rounded(use.cpu_seconds + before.cpu_seconds);
  json["ready_read_bytes"] = use.read_bytes + before.read_bytes;
  Add(JsonText(json));
}

void RankLog::StepBegins() {
  if (!lines_.has_value()) return;
  const double now = MonotonicSeconds();
  outside_ += now - since_;
  if (steps_ > 0 && now - written_ >= kSecondsPerLine && lines_->idle()) {
    Write(now);
  }
  since_ = now;
  exposed_before_ = session_.group->stats().exposed_seconds;
}

void RankLog::StepEnds() {
  if (!lines_.has_value()) return;
  const double now = MonotonicSeconds();
  ++steps_;
  step_seconds_ += now - since_;
  exposed_ += session_.group->stats().exposed_seconds - exposed_before_;
  since_ = now;
}

void RankLog::Write(double now) {
  if (!lines_.has_value()) return;
  const PhaseSeconds phases = session_.phase.clock().Take();
  Json json = {{"time", UnixSeconds()},
               {"step", session_.state.step},
               {"steps", steps_},
               {"step_seconds", Rounded(step_seconds_)}};
  double named = exposed_;
  for (size_t i = 0; i < kTimedPhases.size(); ++i) {
    named += phases.of[i];
    if (kTimedPhases[i] == kRolloutPhase && phases.of[i] == 0.0) continue;
    json[kTimedPhases[i]] = Rounded(phases.of[i]);
  }
  json["exposed"] = Rounded(exposed_);
  json["rest"] = Rounded(std::max(0.0, step_seconds_ - named));
  json["outside"] = Rounded(outside_);
  json["actions"] = Json::object();
  for (const auto& [name, seconds] : actions_) {
    json["actions"][name] = Rounded(seconds);
  }
  const Use use = ReadUse();
  if (session_.group->device().is_cpu()) {
    json["off_core"] = Rounded(phases.off_core);
  }
  json["runqueue_seconds"] =
      Rounded(use.runqueue_seconds - used_.runqueue_seconds);
  json["cpu_seconds"] = Rounded(use.cpu_seconds - used_.cpu_seconds);
  json["steal_seconds"] = Rounded(use.steal_seconds - used_.steal_seconds);
  json["iowait_seconds"] = Rounded(use.iowait_seconds - used_.iowait_seconds);
  json["major_faults"] = use.major_faults - used_.major_faults;
  json["read_bytes"] = use.read_bytes - used_.read_bytes;
  json["rss_bytes"] = ResidentBytes();
  json["threads_running"] = RunningThreads();
  used_ = use;
  steps_ = 0;
  step_seconds_ = exposed_ = outside_ = 0.0;
  actions_.clear();
  written_ = now;
  Add(JsonText(json));
}

void RankLog::Add(const std::string& object) {
  const absl::Status added = lines_->Add(object);
  if (added.ok()) return;
  LOG(WARNING) << added.message() << ": this rank's times aren't recorded";
  lines_.reset();
}

}  // namespace capstan
