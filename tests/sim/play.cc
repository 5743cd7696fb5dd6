// SPDX-License-Identifier: Apache-2.0
//
// A job of a launcher on each host, a scheduler that starts it again, and the
// schedule's faults.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <glog/logging.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <set>
#include <streambuf>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/launch/launcher.h"
#include "testing/sim/globals.h"
#include "testing/sim/world.h"
#include "tests/sim/ledger.h"
#include "tests/sim/rank.h"
#include "tests/sim/schedule.h"

namespace capstan::sim {
namespace {

// A scheduler that starts a job again waits for longer each time.
constexpr Time kRequeue = 5 * kSecond;
constexpr Time kMostRequeue = 60 * kSecond;
// How long a job may go on whose host is lost, before its scheduler ends it.
constexpr Time kNodeFailed = 180 * kSecond;

// std::cerr of simulated processes.
class ProcessErrors final : public std::streambuf {
 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    return write(STDERR_FILENO, text, static_cast<size_t>(size));
  }
  int overflow(int c) override {
    const char one = static_cast<char>(c);
    return write(STDERR_FILENO, &one, 1) == 1 ? c : -1;
  }
};

// Whether a fault keeps a living rank from learning of a death.
bool Hinders(Fault::Kind kind) {
  return kind == Fault::kStopRank || kind == Fault::kPauseHost ||
         kind == Fault::kPartition || kind == Fault::kIsolate ||
         kind == Fault::kSlowDisk;
}

// When it no longer disturbs the jobs that begin.
Time Over(const Fault& fault, Time now) {
  const bool stays =
      fault.kind == Fault::kDiskErrors || fault.kind == Fault::kSecondRun;
  return stays ? 3600 * kSecond : now + fault.length;
}

class Player {
 public:
  Player(const Schedule& schedule, bool tell)
      : schedule_(schedule),
        world_({schedule.seed, schedule.hosts, tell, 3600 * kSecond}),
        ledger_(&world_) {}

  Outcome Run();

 private:
  void StartJob();
  void StartLauncher(int host, int job, bool alone);
  Place PlaceOf(int host, int job, bool alone) const;
  void LauncherEnded(const Process& launcher);
  void Requeue();
  bool MustSurvive(const Fault& fault) const;
  void Begin(const Fault& fault);
  void EndJob();
  void Audit();
  Process* RankOf(const Fault& fault);

  const Schedule schedule_;
  World world_;
  Ledger ledger_;
  int job_ = 0;
  std::set<Process*> launchers_;
  bool failed_ = false;
  bool requeues_ = false;
  // Whether the launchers must bring the job to its end by themselves.
  bool must_survive_ = false;
  Time job_begun_ = 0;
  Time over_ = 0;  // when the faults that have begun are
  Time disturbed_until_ = 0;
  int jobs_since_ = 0;
};

Place Player::PlaceOf(int host, int job, bool alone) const {
  Place place;
  RankInfo& info = place.info;
  info.nodes = alone ? 1 : schedule_.hosts;
  info.node_rank = alone ? 0 : host;
  info.local_world_size = schedule_.ranks_per_host;
  info.world_size = info.nodes * info.local_world_size;
  info.meeting_folder = kRunFolder;
  if (info.nodes > 1) {
    info.run_key = absl::StrCat("job-", job);
    if (schedule_.published) {
      info.master_addr = "";
      info.master_port = 0;
    } else {
      info.master_addr = "10.0.0.1";
      info.master_port = 29500;
      info.token = absl::StrCat("secret-", schedule_.seed);
    }
  }
  place.max_restarts = schedule_.max_restarts;
  if (schedule_.shrinks) info.min_processes = schedule_.ranks_per_host;
  return place;
}

void Player::StartLauncher(int host, int job, bool alone) {
  const Place place = PlaceOf(host, job, alone);
  Process* const process = world_.Spawn(
      host, absl::StrCat("launcher of job ", job), [this, place, job] {
        setenv("OMP_NUM_THREADS", "1", 1);
        setenv("CAPSTAN_HOST_ID", Mine()->host->name.c_str(), 1);
        return LaunchRanks(place, [this, job](const RankInfo& info) {
          return RunRank(info, schedule_, job);
        });
      });
  if (!alone) launchers_.insert(process);
  process->tag = job;
}

void Player::StartJob() {
  ++job_;
  if (world_.now() > disturbed_until_) ++jobs_since_;
  if (jobs_since_ > 3) {
    return ledger_.Violate(absl::StrCat(
        "end: job ", job_, " begins, and nothing disturbs the run any more"));
  }
  failed_ = false;
  requeues_ = false;
  job_begun_ = world_.now();
  must_survive_ = over_ <= job_begun_;
  launchers_.clear();
  for (int host = 0; host < schedule_.hosts; ++host) {
    StartLauncher(host, job_, /*alone=*/false);
  }
}

void Player::LauncherEnded(const Process& launcher) {
  const int job = static_cast<int>(launcher.tag);
  const int status = launcher.status;
  if (job != job_) return;
  if (status != 0) failed_ = true;
  if (status != 0 && must_survive_ && launcher.host->up) {
    ledger_.Violate(absl::StrCat("survive: ", launcher.host->name, " ends job ",
                                 job, ", which could have gone on"));
  }
  if (!launchers_.empty()) {
    // A scheduler ends the others of a job that has lost a task.
    if (status != 0) {
      world_.After(kNodeFailed, [this, job] {
        if (job == job_) EndJob();
      });
    }
    return;
  }
  if (!failed_) {
    ledger_.completed = true;
    return Audit();
  }
  Requeue();
}

void Player::EndJob() {
  for (Process* const launcher : std::set<Process*>(launchers_)) {
    world_.Signal(launcher, SIGKILL);
  }
}

void Player::Requeue() {
  if (requeues_) return;
  requeues_ = true;
  const auto try_again = [this](const auto& self) -> void {
    world_.After(std::min(job_ * kRequeue, kMostRequeue), [this, self] {
      for (int host = 0; host < schedule_.hosts; ++host) {
        if (!world_.host(host).up || world_.host(host).paused) {
          return self(self);
        }
      }
      StartJob();
    });
  };
  try_again(try_again);
}

Process* Player::RankOf(const Fault& fault) {
  int index = 0;
  for (const auto& process : world_.processes()) {
    if (!process->alive() || process->host->index != fault.host) continue;
    if (process->name.rfind("rank ", 0) != 0) continue;
    if (index++ == fault.other) return process.get();
  }
  return nullptr;
}

// Whether the job goes on by itself after this, its first fault.
bool Player::MustSurvive(const Fault& fault) const {
  if (schedule_.max_restarts == 0 || ledger_.saved() == schedule_.steps) {
    return false;
  }
  if (fault.kind == Fault::kKillRank) return true;
  // Ranks that have met know all hosts.
  return fault.kind == Fault::kCrashHost && schedule_.shrinks &&
         ledger_.have_met();
}

void Player::Begin(const Fault& fault) {
  world_.Tell("FAULT", fault.Text());
  must_survive_ = over_ <= job_begun_ && MustSurvive(fault);
  over_ = std::max(over_, Over(fault, world_.now()) + 1);
  const Time until = world_.now() + fault.length;
  Host& host = world_.host(fault.host);
  Process* const rank = RankOf(fault);
  switch (fault.kind) {
    case Fault::kKillRank:
      if (rank != nullptr) world_.Signal(rank, SIGKILL);
      break;
    case Fault::kStopRank:
      if (rank == nullptr) break;
      world_.Signal(rank, SIGSTOP);
      world_.At(until, [this, rank] { world_.Signal(rank, SIGCONT); });
      break;
    case Fault::kKillLauncher:
      for (Process* const one : std::set<Process*>(launchers_)) {
        if (one->host == &host) world_.Signal(one, SIGKILL);
      }
      break;
    case Fault::kCrashHost:
      world_.CrashHost(fault.host);
      world_.At(until, [this, fault] { world_.BootHost(fault.host); });
      break;
    case Fault::kPowerCut:
      for (int i = 0; i < world_.hosts(); ++i) world_.CrashHost(i);
      world_.CutDisk();
      world_.At(until, [this] {
        for (int i = 0; i < world_.hosts(); ++i) world_.BootHost(i);
      });
      break;
    case Fault::kPauseHost:
      world_.PauseHost(fault.host, true);
      world_.At(until, [this, fault] { world_.PauseHost(fault.host, false); });
      break;
    case Fault::kPartition:
      if (fault.host != fault.other) {
        world_.Partition(fault.host, fault.other, until);
      }
      break;
    case Fault::kIsolate:
      for (int i = 0; i < world_.hosts(); ++i) {
        if (i != fault.host) world_.Partition(fault.host, i, until);
      }
      break;
    case Fault::kFullDisk:
      host.disk_full_until = until;
      break;
    case Fault::kSlowDisk:
      host.disk_slowness = 200;
      world_.At(until, [&host] { host.disk_slowness = 1; });
      break;
    case Fault::kDiskErrors:
      host.disk_errors = 2;
      break;
    case Fault::kSkewClock:
      host.clock_ahead += (world_.random().Below(7200) - 3600) * kSecond;
      break;
    case Fault::kStopJob:
      for (Process* const one : std::set<Process*>(launchers_)) {
        world_.Signal(one, SIGTERM);
      }
      break;
    case Fault::kSecondRun:
      if (host.up) StartLauncher(fault.host, 1000 + job_, /*alone=*/true);
      break;
    case Fault::kKinds:
      break;
  }
}

void Player::Audit() {
  for (int i = 0; i < world_.hosts(); ++i) world_.BootHost(i);
  Process* const auditor =
      world_.Spawn(0, "auditor", [] { return capstan::sim::Audit(); });
  auditor->tag = -2;
}

Outcome Player::Run() {
  const auto ledger_end = world_.on_end;
  world_.on_end = [this, ledger_end](Process* process) {
    ledger_end(process);
    if (launchers_.erase(process) > 0) {
      LauncherEnded(*process);
    }
    if (process->tag == -2) world_.Stop();
  };
  ledger_.watches_hosts = schedule_.max_restarts > 0;
  bool silent = false;
  for (const Fault& fault : schedule_.faults) {
    ledger_.disturbed_until =
        std::max(ledger_.disturbed_until, fault.at + fault.length);
    world_.At(fault.at, [this, fault] { Begin(fault); });
    disturbed_until_ =
        std::max(disturbed_until_, fault.at + fault.length + 300 * kSecond);
    ledger_.patience += Hinders(fault.kind) ? fault.length + 60 * kSecond : 0;
    silent |= !ledger_.watches_hosts && fault.kind == Fault::kCrashHost;
  }
  // A rank that waits for a silent host alone hears of another's death only by
  // those who leave because of it.
  if (silent) ledger_.patience += 60 * kSecond;
  StartJob();
  world_.Run();
  if (world_.violation().empty() && !ledger_.completed) {
    ledger_.Violate(absl::StrCat("end: job ", job_, " has no end"));
  }
  Outcome outcome;
  outcome.violation = world_.violation();
  outcome.kind = outcome.violation.substr(0, outcome.violation.find(':'));
  outcome.trace = world_.trace();
  outcome.switches = world_.switches();
  outcome.length = world_.now();
  outcome.jobs = job_;
  outcome.story = world_.story();
  return outcome;
}

}  // namespace

Outcome Play(const Schedule& schedule, bool tell) {
  static ProcessErrors errors;
  static const bool ready = [] {
    FLAGS_minloglevel = 3;
    // ATen looks for the processor's instructions when it first copies. A rank
    // that is killed meanwhile would leave that as begun, for all worlds.
    at::empty({1}).copy_(at::ones({1}));
    WatchGlobals({"libcapstan_core", "libplanted"});
    return true;
  }();
  (void)ready;
  std::streambuf* const before = std::cerr.rdbuf(&errors);
  Outcome outcome;
  {
    Player player(schedule, tell);
    outcome = player.Run();
  }
  std::cerr.rdbuf(before);
  return outcome;
}

}  // namespace capstan::sim
