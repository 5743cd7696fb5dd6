// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/launcher.h"

#include <errno.h>
#include <glog/logging.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/error_code.h"
#include "base/exit_codes.h"
#include "base/status.h"
#include "cluster/launch/host_ranks.h"
#include "cluster/launch/network.h"
#include "cluster/launch/progress.h"
#include "cluster/launch/restarts.h"
#include "cluster/launch/signals.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

// After the first failure other ranks may report theirs: the first one seen
// need not be the cause.
constexpr std::chrono::milliseconds kReportGrace{2000};
// Between SIGTERM and SIGKILL, once a run has failed.
constexpr std::chrono::milliseconds kEndGrace{1000};
// How long a rank may stay suspended (SIGSTOP) after the run was asked to stop.
constexpr std::chrono::seconds kFrozenGrace{10};

// Supervises a run's ranks from the first fork to the last exit.
class Supervisor {
 public:
  Supervisor(const Place& place, ChangingHosts* hosts)
      : place_(place), hosts_(hosts), restarts_(place.max_restarts) {}
  ~Supervisor();

  int Run(const RankMain& rank_main);

 private:
  // What outlives the ranks.
  absl::Status Prepare();
  absl::Status OpenMirrors();
  // Before a restart: leaves out the hosts that the ranks have given up.
  absl::Status LeaveHosts();
  absl::Status Start(const RankMain& rank_main);
  // Supervises from the fork to the last exit. Returns the run's exit code, or
  // nullopt if the ranks have ended and must be restarted.
  absl::optional<int> Supervise(const RankMain& rank_main);
  // `info`: as of HostRanks::Fork.
  absl::Status Fork(const RankInfo& info, const RankMain& rank_main);

  // With hosts_. Blocks until there is a world newer than world_ that has this
  // host, and enters it; or returns the run's exit code.
  absl::optional<int> AwaitWorld();
  void Enter(const ChangingHosts::World& world);
  // The exit code after an ending without ranks.
  int Ended(const ChangingHosts::Ending& ending);
  // Obeys the hosts while ranks run. Returns whether the ranks of world_ have
  // all ended, since the next world is due.
  bool LeaveWorld();
  // Whether the ranks of this host have completed the run, or stopped.
  bool EndedInOrder() const;
  // Whether the run has ended elsewhere by an error; then the ranks here have
  // been killed.
  bool EndedElsewhere();
  // Blocks until output, a report, a signal, or the end of a grace period.
  void WaitForEvents();
  void HandleSignals();
  void Pause();
  // Ends a run that was asked to stop but has a suspended rank.
  bool EndsFrozen();
  // Whether the first failure is a death after which the ranks are restarted;
  // if so, all have ended on return.
  bool EndForRestart();
  // Once the cause is known: reports it and ends the remaining ranks.
  void EndAfterFailure();
  void PrintCause();
  int ExitCode() const;
  absl::optional<Clock::time_point> Deadline() const;

  Place place_;
  ChangingHosts* const hosts_;  // or null
  int64_t world_ = 0;           // of hosts_
  bool progressed_ = false;     // they know that world_ has done a step
  bool left_ = false;           // by SIGTERM, hosts_ are to go on
  BlockedSignals signals_;
  Restarts restarts_;
  std::unique_ptr<SharedProgress> progress_;
  std::vector<int> mirror_fds_;
  HostRanks ranks_;
  int stop_signal_ = 0;
  // The latest signal to stop, and when it came.
  int last_signal_ = 0;
  Clock::time_point last_signal_at_;
  absl::optional<Clock::time_point> frozen_since_;
  bool killed_by_user_ = false;
  absl::optional<Clock::time_point> ending_at_;
  bool killed_ = false;
};

Supervisor::~Supervisor() {
  for (const int fd : mirror_fds_) close(fd);
}

absl::Status Supervisor::Prepare() {
  CAPSTAN_ASSIGN_OR_RETURN(progress_, SharedProgress::Create());
  return OpenMirrors();
}

absl::Status Supervisor::OpenMirrors() {
  if (!restarts_.on() || !place_.mirrors) return absl::OkStatus();
  const bool hosts = place_.info.nodes > 1 || hosts_ != nullptr;
  const int files =
      hosts ? RankInfo::kOwnMirrorFilesOfHosts + RankInfo::kHeldMirrorFiles
            : RankInfo::kOwnMirrorFiles;
  CAPSTAN_ASSIGN_OR_RETURN(mirror_fds_,
                           MirrorFiles(files * place_.info.local_world_size));
  return absl::OkStatus();
}

absl::Status Supervisor::Start(const RankMain& rank_main) {
  RankInfo info = place_.info;
  info.restart = restarts_.done();
  info.mirror_fds = mirror_fds_;
  progress_->page().step = -1;
  progressed_ = false;
  CAPSTAN_ASSIGN_OR_RETURN(info.threads, ThreadsPerRank(info.local_world_size));
  if (hosts_ != nullptr) {
    const SocketFd listening(hosts_->TakeListening());
    info.listen_fd = listening.get();
    info.restart = static_cast<int>(world_) - 1;
    absl::StrAppend(&info.run_key, "-world-", world_);
    CAPSTAN_RETURN_IF_ERROR(Fork(info, rank_main));
    hosts_->Entered(world_);
    return absl::OkStatus();
  }
  if (info.nodes > 1) {
    // The meeting's name stays: each host counts its own restarts.
    info.comes_again = restarts_.on();
    return Fork(std::move(info), rank_main);
  }
  info.master_addr = "127.0.0.1";
  SocketAddress address = *SocketAddress::Parse(info.master_addr, 0);
  const absl::StatusOr<SocketFd> listening = ListenAt(&address);
  if (!listening.ok()) {
    return Annotate(listening.status(), "can't listen for the ranks");
  }
  info.listen_fd = listening->get();
  info.master_port = address.port();
  if (info.token.empty()) info.token = RandomToken();
  if (info.run_key.empty()) info.run_key = absl::StrCat("launcher-", getpid());
  if (info.restart > 0) {
    // Leftovers of the previous ranks can't join.
    absl::StrAppend(&info.run_key, "-restart-", info.restart);
    absl::StrAppend(&info.token, "-restart-", info.restart);
  }
  return Fork(std::move(info), rank_main);
}

absl::Status Supervisor::Fork(const RankInfo& info, const RankMain& rank_main) {
  return ranks_.Fork(
      place_, info,
      [this] {
        signals_.RestoreInChild();
        if (hosts_ == nullptr) return;
        hosts_->CloseInChild();
        // Schedulers send it to all processes, and it is the launcher's affair.
        signal(SIGTERM, SIG_IGN);
        if (stop_signal_ != 0) AdoptStop(stop_signal_);
        // There is something to save.
        if (world_ > 1) RanksHaveMet();
      },
      rank_main);
}

absl::optional<Clock::time_point> Supervisor::Deadline() const {
  if (frozen_since_.has_value()) return *frozen_since_ + kFrozenGrace;
  if (!ranks_.failed() || killed_) return absl::nullopt;
  if (ending_at_.has_value()) return *ending_at_ + kEndGrace;
  return ranks_.failed_at() + kReportGrace;
}

void Supervisor::WaitForEvents() {
  // poll ignores negative descriptors.
  std::vector<pollfd> fds = {
      {signals_.fd(), POLLIN, 0},
      {hosts_ == nullptr ? -1 : hosts_->fd(), POLLIN, 0}};
  constexpr size_t kRanks = 2;
  ranks_.AddTo(&fds);
  int timeout_ms = -1;
  if (const auto deadline = Deadline()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        *deadline - Clock::now());
    timeout_ms = std::max<int>(0, left.count() + 1);
  }
  // Poll, since nothing notifies about a suspended rank.
  constexpr int kLookMs = 1000;
  if (stop_signal_ != 0 && (timeout_ms < 0 || timeout_ms > kLookMs)) {
    timeout_ms = kLookMs;
  }
  // Nor about the world's first step.
  constexpr int kFirstStepMs = 100;
  if (hosts_ != nullptr && !progressed_) {
    timeout_ms =
        timeout_ms < 0 ? kFirstStepMs : std::min(timeout_ms, kFirstStepMs);
  }
  if (poll(fds.data(), fds.size(), timeout_ms) < 0) {
    PCHECK(errno == EINTR);
    return;
  }
  ranks_.Handle(fds.data() + kRanks);
  if (fds[0].revents != 0) HandleSignals();
}

void Supervisor::HandleSignals() {
  while (const int signal = signals_.Next()) {
    if (signal == SIGCHLD) {
      ranks_.Reap();
    } else if (signal == SIGTSTP) {
      Pause();
    } else if (signal == SIGCONT) {
      ranks_.SignalAll(SIGCONT);
    } else if (hosts_ != nullptr && signal == SIGTERM && !left_ &&
               stop_signal_ == 0) {
      left_ = true;
      last_signal_ = signal;
      last_signal_at_ = Clock::now();
      PrintToStderr(
          "SIGTERM: this host leaves the run at the end of a step; again: at "
          "once\n");
      hosts_->Leave();
    } else if (const Clock::time_point now = Clock::now();
               stop_signal_ == 0 && !left_) {
      stop_signal_ = last_signal_ = signal;
      last_signal_at_ = now;
      PrintToStderr(absl::StrCat(StopText(signal), "\n"));
      ranks_.SignalAll(signal);
      // Wake suspended ranks so that they can save.
      ranks_.SignalAll(SIGCONT);
    } else if (!IsDeliveredTwice(last_signal_, signal, now - last_signal_at_)) {
      stop_signal_ = signal;
      killed_by_user_ = true;
    } else {
      last_signal_ = signal;
      last_signal_at_ = now;
    }
  }
}

// Forwards Ctrl-Z, which the ranks don't get in their own process groups.
void Supervisor::Pause() {
  ranks_.SignalAll(SIGSTOP);
  kill(getpid(), SIGSTOP);
  // This process has been resumed.
  ranks_.SignalAll(SIGCONT);
}

bool Supervisor::EndsFrozen() {
  if (stop_signal_ == 0 && !left_) return false;
  const int frozen = ranks_.Frozen();
  if (frozen < 0) {
    frozen_since_.reset();
    return false;
  }
  const Clock::time_point now = Clock::now();
  if (!frozen_since_.has_value()) frozen_since_ = now;
  if (now - *frozen_since_ < kFrozenGrace) return false;
  ranks_.PrintOutputLeft();
  PrintToStderr(absl::StrCat(
      "ERROR: [rank ", ranks_.first() + frozen,
      "] is stopped (SIGSTOP) and can't save: the run ends without a "
      "checkpoint of its last steps\n"));
  ranks_.KillAll();
  return true;
}

absl::Status Supervisor::LeaveHosts() {
  const std::string gone = progress_->page().gone.Get();
  progress_->page().gone.Set("");
  if (gone.empty()) return absl::OkStatus();
  std::string hosts = NotedHosts();
  CAPSTAN_ASSIGN_OR_RETURN(place_, PlaceWithout(place_, gone, &hosts));
  NoteHosts(hosts);
  PrintToStderr(absl::StrCat(
      "going on without host ", gone, ": ", place_.info.world_size,
      place_.info.world_size == 1 ? " rank is" : " ranks are", " left\n"));
  return absl::OkStatus();
}

absl::optional<int> Supervisor::AwaitWorld() {
  bool told = false;
  const Clock::time_point began = Clock::now();
  while (true) {
    hosts_->Handle();
    const ChangingHosts::World& world = hosts_->world();
    const ChangingHosts::Ending& ending = hosts_->ending();
    // Ranks that stop may have to be started again for that.
    const bool ended = !ending.text.empty() && !(ending.stops && world_ > 0);
    if (ended) return Ended(ending);
    if (world.number > world_ && world.node_rank >= 0) {
      Enter(world);
      return absl::nullopt;
    }
    constexpr std::chrono::seconds kQuiet{5};
    if (!told && Clock::now() - began > kQuiet) {
      told = true;
      PrintToStderr(absl::StrCat(hosts_->Waits(), "\n"));
    }
    pollfd fds[] = {{signals_.fd(), POLLIN, 0}, {hosts_->fd(), POLLIN, 0}};
    if (poll(fds, 2, told ? -1 : 1000) <= 0 || fds[0].revents == 0) continue;
    while (const int signal = signals_.Next()) {
      if (signal == SIGCHLD || signal == SIGCONT) continue;
      if (signal == SIGTSTP) {
        kill(getpid(), SIGSTOP);
        continue;
      }
      const bool again = left_ || stop_signal_ != 0;
      if (signal == SIGTERM || world_ == 0) {
        left_ = true;
        hosts_->Leave();
      } else {
        stop_signal_ = signal;
      }
      // Others may need what this host has mirrored.
      if (world_ == 0 || again) return 128 + signal;
    }
  }
}

void Supervisor::Enter(const ChangingHosts::World& world) {
  RankInfo& info = place_.info;
  const bool first = world_ == 0 && world.number == 1;
  world_ = world.number;
  info.nodes = world.nodes;
  info.node_rank = world.node_rank;
  info.world_size = world.nodes * info.local_world_size;
  info.master_addr = world.master_addr;
  info.master_port = world.master_port;
  progress_->page().world_changes = 0;
  NoteHosts(absl::StrJoin(world.addresses, ","));
  if (first || world.node_rank > 0) return;
  PrintToStderr(absl::StrCat(
      world.why, world.why.empty() ? "" : ": ", "going on with ", world.nodes,
      world.nodes == 1 ? " host, " : " hosts, ", info.world_size,
      info.world_size == 1 ? " rank\n" : " ranks\n"));
}

int Supervisor::Ended(const ChangingHosts::Ending& ending) {
  PrintToStderr(
      absl::StrCat(ending.failed ? "ERROR: " : "", ending.text, "\n"));
  return left_ && !ending.failed ? 128 + SIGTERM : ending.code;
}

bool Supervisor::EndedElsewhere() {
  const ChangingHosts::Ending& ending = hosts_->ending();
  if (ending.text.empty() || hosts_->world().number > world_) return false;
  if (ending.stops) {
    if (stop_signal_ != 0) return false;
    stop_signal_ = SIGTERM;
    PrintToStderr(absl::StrCat(ending.text, ": the run saves and stops\n"));
    ranks_.SignalAll(SIGINT);
    return false;
  }
  if (!ending.failed || ranks_.failed()) return false;
  ranks_.KillAll();
  ranks_.PrintOutputLeft();
  return true;
}

bool Supervisor::EndedInOrder() const {
  return ranks_.AllAre(RankOutcome::kOk) ||
         ranks_.AllAre(RankOutcome::kStopped);
}

bool Supervisor::LeaveWorld() {
  const int64_t step = progress_->page().step;
  progressed_ = step >= 0;
  if (progressed_) hosts_->Progressed(world_, step);
  hosts_->Handle();
  const ChangingHosts::World& next = hosts_->world();
  if (next.number <= world_) {
    return ranks_.AllAre(RankOutcome::kLeft);
  }
  // They have ended before they heard of it, or by their own error.
  if (EndedInOrder()) return false;
  if (ranks_.failed() &&
      ranks_.Outcome(ranks_.Cause())->kind == RankOutcome::kFailed) {
    return false;
  }
  if (next.gentle) progress_->page().world_changes = next.saves ? 2 : 1;
  // If one dies now, the others lose it. Before the first step there is nothing
  // to lose, and the ranks may wait for one that won't come.
  if (!next.gentle || ranks_.failed() || !progressed_) {
    ranks_.KillAll();
  }
  if (!ranks_.AllExited()) return false;
  ranks_.PrintOutputLeft();
  return true;
}

bool Supervisor::EndForRestart() {
  if (ending_at_.has_value()) return false;
  if (hosts_ == nullptr && (!restarts_.on() || stop_signal_ != 0)) {
    return false;
  }
  const int cause = ranks_.Cause();
  const RankOutcome outcome = *ranks_.Outcome(cause);
  if (outcome.kind == RankOutcome::kFailed ||
      outcome.kind == RankOutcome::kStopped) {
    return false;
  }
  // A rank that only lost its peer may be the first to report.
  if (outcome.kind == RankOutcome::kLostPeer && !ranks_.AllHaveOutcome() &&
      Clock::now() < ranks_.failed_at() + kReportGrace) {
    return false;
  }
  ranks_.KillAll();
  const std::string what =
      outcome.kind == RankOutcome::kDied
          ? outcome.how
          : absl::StrCat("lost the others (", outcome.message, ")");
  const std::string gone = progress_->page().gone.Get();
  if (hosts_ != nullptr) {
    ranks_.PrintOutputLeft();
    progress_->page().gone.Set("");
    if (!gone.empty()) hosts_->LeaveOut(world_, gone);
    hosts_->Died(world_, progress_->page().step,
                 absl::StrCat("rank ", ranks_.first() + cause, " ", what),
                 outcome.kind == RankOutcome::kDied);
    return true;
  }
  if (!restarts_.Again(progress_->page().step, !gone.empty())) {
    // The others have died of this.
    ranks_.OnlyFailed(cause);
    return false;
  }
  ranks_.PrintOutputLeft();
  PrintToStderr(absl::StrCat("rank ", ranks_.first() + cause, " ", what, " ",
                             restarts_.When(), "; starting the ranks again",
                             restarts_.Count(), "\n"));
  return true;
}

void Supervisor::PrintCause() {
  ranks_.PrintOutputLeft();
  const bool own = ranks_.Outcome(ranks_.Cause())->kind == RankOutcome::kFailed;
  PrintToStderr(absl::StrCat("ERROR: ", ranks_.CauseText(),
                             own ? "" : restarts_.Ending(), "\n"));
}

void Supervisor::EndAfterFailure() {
  const Clock::time_point now = Clock::now();
  if (!ending_at_.has_value()) {
    if (!ranks_.AllHaveOutcome() && now < ranks_.failed_at() + kReportGrace)
      return;
    PrintCause();
    if (hosts_ != nullptr) {
      hosts_->Failed(world_, ranks_.Outcome(ranks_.Cause())->message);
    }
    ranks_.SignalAll(SIGTERM);
    ending_at_ = now;
  } else if (!killed_ && now >= *ending_at_ + kEndGrace) {
    ranks_.SignalAll(SIGKILL);
    killed_ = true;
  }
}

int Supervisor::ExitCode() const {
  if (ranks_.failed()) return ranks_.AnyHung() ? kHungExitCode : 1;
  const absl::optional<RankOutcome> stopped = ranks_.Stopped();
  if (!stopped.has_value()) return 0;
  PrintToStderr(absl::StrCat(stopped->message, "\n"));
  return 128 + (stop_signal_ != 0 ? stop_signal_ : stopped->stop_signal);
}

absl::optional<int> Supervisor::Supervise(const RankMain& rank_main) {
  ranks_ = HostRanks();
  absl::Status started = LeaveHosts();
  if (started.ok()) started = Start(rank_main);
  if (!started.ok()) {
    ranks_.KillAll();
    PrintToStderr(absl::StrCat("ERROR: ", TextWithCode(started), "\n"));
    return 1;
  }
  while (!ranks_.AllExited()) {
    WaitForEvents();
    if (killed_by_user_) {
      ranks_.KillAll();
      ranks_.PrintOutputLeft();
      return 128 + stop_signal_;
    }
    if (EndsFrozen()) {
      return 128 + (stop_signal_ != 0 ? stop_signal_ : SIGTERM);
    }
    ranks_.NoteFailures(/*stopping=*/stop_signal_ != 0);
    if (hosts_ != nullptr) {
      if (LeaveWorld()) return absl::nullopt;
      if (EndedElsewhere()) return Ended(hosts_->ending());
    }
    if (!ranks_.failed()) continue;
    if (EndForRestart()) return absl::nullopt;
    EndAfterFailure();
  }
  ranks_.PrintOutputLeft();
  const int code = ExitCode();
  if (hosts_ != nullptr && !ranks_.failed()) hosts_->Finish(code);
  return code;
}

int Supervisor::Run(const RankMain& rank_main) {
  const absl::Status prepared = Prepare();
  if (!prepared.ok()) {
    PrintToStderr(absl::StrCat("ERROR: ", TextWithCode(prepared), "\n"));
    return 1;
  }
  while (true) {
    absl::optional<int> code;
    if (hosts_ != nullptr) code = AwaitWorld();
    if (!code.has_value()) code = Supervise(rank_main);
    if (code.has_value()) return *code;
  }
}

}  // namespace

int LaunchRanks(int processes, const RankMain& rank_main) {
  Place place;
  place.info.world_size = processes;
  place.info.local_world_size = processes;
  return LaunchRanks(place, rank_main);
}

int LaunchRanks(const Place& place, const RankMain& rank_main,
                ChangingHosts* hosts) {
  const RankInfo& info = place.info;
  CHECK_GE(info.local_world_size, 1);
  CHECK_EQ(info.world_size, info.nodes * info.local_world_size);
  return Supervisor(place, hosts).Run(rank_main);
}

namespace {
constexpr char kRankHasLeft[] = "capstan/rank_has_left";
}  // namespace

absl::Status RankHasLeft() {
  absl::Status status = absl::AbortedError("the run goes on with other hosts");
  status.SetPayload(kRankHasLeft, absl::Cord());
  return status;
}

bool IsRankHasLeft(const absl::Status& status) {
  return status.GetPayload(kRankHasLeft).has_value();
}

int RunSingleRank(const RankInfo& info, const RankMain& rank_main) {
  InstallStopHandlers(SecondSignal::kEndsProcess);
  MarkInsideRank();
  const absl::Status status = CallRankMain(rank_main, info);
  if (status.ok()) return 0;
  if (status.code() == absl::StatusCode::kCancelled && StopRequested() != 0) {
    PrintToStderr(absl::StrCat(status.message(), "\n"));
    return 128 + StopRequested();
  }
  const std::string who =
      info.world_size > 1 ? absl::StrCat("[rank ", info.rank, "] ") : "";
  PrintToStderr(absl::StrCat("ERROR: ", who, TextWithCode(status), "\n"));
  return 1;
}

}  // namespace capstan
