// SPDX-License-Identifier: Apache-2.0
#include "trainer/launcher/launcher.h"

#include <arpa/inet.h>
#include <errno.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/exit_codes.h"
#include "base/status.h"
#include "trainer/launcher/rank_process.h"
#include "trainer/launcher/signals.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

// After the first failure other ranks may report theirs: the first one seen
// need not be the cause.
constexpr std::chrono::milliseconds kReportGrace{2000};
// Between SIGTERM and SIGKILL, once a run has failed.
constexpr std::chrono::milliseconds kEndGrace{1000};

// Listens on a free port of this machine; returns the socket and sets *port.
absl::StatusOr<int> Listen(int* port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || bind(fd, generic, size) != 0 || listen(fd, SOMAXCONN) != 0 ||
      getsockname(fd, generic, &size) != 0) {
    const absl::Status error = absl::InternalError(absl::StrCat(
        "can't listen on a free port of 127.0.0.1: ", strerror(errno)));
    if (fd >= 0) close(fd);
    return error;
  }
  *port = ntohs(address.sin_port);
  return fd;
}

void PrintToStderr(absl::string_view text) {
  // A progress bar may occupy the terminal's line.
  const bool bar = isatty(STDERR_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  WriteAll(STDERR_FILENO, bar && !text.empty() ? absl::StrCat("\r\033[K", text)
                                               : std::string(text));
}

// Supervises a run's ranks from the first fork to the last exit.
class Supervisor {
 public:
  explicit Supervisor(const Place& place)
      : place_(place),
        first_rank_(place.info.nodes > 1
                        ? place.info.node_rank * place.info.local_world_size
                        : 0) {}

  int Run(const RankMain& rank_main);

 private:
  absl::Status Start(const RankMain& rank_main);
  absl::Status Fork(RankInfo info, const RankMain& rank_main);
  // Blocks until output, a report, a signal, or the end of a grace period.
  void WaitForEvents();
  void HandleSignals();
  void NoteFailures();
  // Once the cause is known: reports it and ends the remaining ranks.
  void EndAfterFailure();
  void PrintCause();
  void PrintOutputLeft();
  void SignalAll(int signal) const;
  int ExitCode() const;

  bool AllExited() const;
  // The watchdog has ended the run, and has said why.
  bool Hung() const;
  bool AllHaveOutcome() const;
  absl::optional<Clock::time_point> Deadline() const;

  const Place place_;
  const int first_rank_;  // of this host
  BlockedSignals signals_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  int stop_signal_ = 0;
  Clock::time_point stopped_at_;
  bool killed_by_user_ = false;
  std::vector<int> failures_;  // local ranks in order of arrival
  Clock::time_point failed_at_;
  absl::optional<Clock::time_point> ending_at_;
  bool killed_ = false;
};

absl::Status Supervisor::Start(const RankMain& rank_main) {
  RankInfo info = place_.info;
  CAPSTAN_ASSIGN_OR_RETURN(info.threads, ThreadsPerRank(info.local_world_size));
  if (info.nodes > 1) return Fork(std::move(info), rank_main);
  info.master_addr = "127.0.0.1";
  CAPSTAN_ASSIGN_OR_RETURN(info.listen_fd, Listen(&info.master_port));
  if (info.token.empty()) info.token = RandomToken();
  if (info.run_key.empty()) info.run_key = absl::StrCat("launcher-", getpid());
  const int listen_fd = info.listen_fd;
  const absl::Status status = Fork(std::move(info), rank_main);
  close(listen_fd);
  return status;
}

// info: what all ranks of this host share, and rank 0's socket or -1.
absl::Status Supervisor::Fork(RankInfo info, const RankMain& rank_main) {
  const int listen_fd = info.listen_fd;
  for (int local = 0; local < info.local_world_size; ++local) {
    info.rank = first_rank_ + local;
    info.local_rank = local;
    info.gpu = place_.gpu_ids.empty() ? -1 : place_.gpu_ids[local];
    info.listen_fd = info.rank == 0 ? listen_fd : -1;
    const auto let_go = [&] {
      for (const auto& other : ranks_) other->CloseInChild();
      if (info.listen_fd != listen_fd) close(listen_fd);
      signals_.RestoreInChild();
    };
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<RankProcess> process,
                             RankProcess::Start(info, let_go, rank_main));
    ranks_.push_back(std::move(process));
  }
  return absl::OkStatus();
}

bool Supervisor::AllExited() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->exited(); });
}

bool Supervisor::Hung() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->Hung(); });
}

bool Supervisor::AllHaveOutcome() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank->Outcome().has_value();
  });
}

absl::optional<Clock::time_point> Supervisor::Deadline() const {
  if (failures_.empty() || killed_) return absl::nullopt;
  if (ending_at_.has_value()) return *ending_at_ + kEndGrace;
  return failed_at_ + kReportGrace;
}

void Supervisor::WaitForEvents() {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const auto& rank : ranks_) {
    // poll ignores negative descriptors.
    fds.push_back({rank->output_fd(), POLLIN, 0});
    fds.push_back({rank->report_fd(), POLLIN, 0});
  }
  int timeout_ms = -1;
  if (const auto deadline = Deadline()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        *deadline - Clock::now());
    timeout_ms = std::max<int>(0, left.count() + 1);
  }
  if (poll(fds.data(), fds.size(), timeout_ms) < 0) {
    PCHECK(errno == EINTR);
    return;
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (fds[1 + 2 * i].revents != 0) PrintToStderr(ranks_[i]->ReadOutput());
    if (fds[2 + 2 * i].revents != 0) ranks_[i]->ReadReport();
  }
  if (fds[0].revents != 0) HandleSignals();
}

void Supervisor::HandleSignals() {
  while (const int signal = signals_.Next()) {
    if (signal == SIGCHLD) {
      for (const auto& rank : ranks_) rank->Reap();
    } else if (stop_signal_ == 0) {
      stop_signal_ = signal;
      stopped_at_ = Clock::now();
      PrintToStderr(absl::StrCat(SignalName(signal),
                                 ": stopping; a second signal stops at "
                                 "once\n"));
      SignalAll(signal);
    } else if (!IsDeliveredTwice(stop_signal_, signal,
                                 Clock::now() - stopped_at_)) {
      stop_signal_ = signal;
      killed_by_user_ = true;
    }
  }
}

void Supervisor::SignalAll(int signal) const {
  for (const auto& rank : ranks_) rank->Signal(signal);
}

void Supervisor::NoteFailures() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const absl::optional<RankOutcome> outcome = ranks_[rank]->Outcome();
    if (!outcome.has_value() || outcome->kind == RankOutcome::kOk) continue;
    if (outcome->kind == RankOutcome::kStopped &&
        (outcome->stop_signal != 0 || stop_signal_ != 0)) {
      continue;
    }
    if (std::find(failures_.begin(), failures_.end(), rank) !=
        failures_.end()) {
      continue;
    }
    if (failures_.empty()) failed_at_ = Clock::now();
    failures_.push_back(rank);
  }
}

void Supervisor::PrintCause() {
  PrintOutputLeft();
  if (Hung()) return;
  // A rank that only lost its peer prints nothing, unless that holds for all.
  const auto is_own = [this](int rank) {
    return ranks_[rank]->Outcome()->kind != RankOutcome::kLostPeer;
  };
  const auto own = std::find_if(failures_.begin(), failures_.end(), is_own);
  const int cause = own != failures_.end() ? *own : failures_.front();
  const std::string message = ranks_[cause]->Outcome()->message;
  bool all_say_so = true;
  for (const auto& rank : ranks_) {
    const absl::optional<RankOutcome> outcome = rank->Outcome();
    all_say_so &= outcome.has_value() && outcome->message == message;
  }
  PrintToStderr(all_say_so ? absl::StrCat("ERROR: ", message, "\n")
                           : absl::StrCat("ERROR: [rank ", first_rank_ + cause,
                                          "] ", message, "\n"));
}

void Supervisor::PrintOutputLeft() {
  for (const auto& rank : ranks_) {
    PrintToStderr(rank->exited() ? rank->Drain() : rank->ReadOutput());
  }
}

void Supervisor::EndAfterFailure() {
  const Clock::time_point now = Clock::now();
  if (!ending_at_.has_value()) {
    if (!AllHaveOutcome() && now < failed_at_ + kReportGrace) return;
    PrintCause();
    SignalAll(SIGTERM);
    ending_at_ = now;
  } else if (!killed_ && now >= *ending_at_ + kEndGrace) {
    SignalAll(SIGKILL);
    killed_ = true;
  }
}

int Supervisor::ExitCode() const {
  if (Hung()) return kHungExitCode;
  if (!failures_.empty()) return 1;
  for (const auto& rank : ranks_) {
    const RankOutcome outcome = *rank->Outcome();
    if (outcome.kind != RankOutcome::kStopped) continue;
    PrintToStderr(absl::StrCat(outcome.message, "\n"));
    return 128 + (stop_signal_ != 0 ? stop_signal_ : outcome.stop_signal);
  }
  return 0;
}

int Supervisor::Run(const RankMain& rank_main) {
  const absl::Status started = Start(rank_main);
  if (!started.ok()) {
    SignalAll(SIGKILL);
    for (const auto& rank : ranks_) rank->WaitForExit();
    PrintToStderr(absl::StrCat("ERROR: ", started.message(), "\n"));
    return 1;
  }
  while (!AllExited()) {
    WaitForEvents();
    if (killed_by_user_) {
      SignalAll(SIGKILL);
      for (const auto& rank : ranks_) rank->WaitForExit();
      PrintOutputLeft();
      return 128 + stop_signal_;
    }
    NoteFailures();
    if (!failures_.empty()) EndAfterFailure();
  }
  PrintOutputLeft();
  return ExitCode();
}

}  // namespace

int LaunchRanks(int processes, const RankMain& rank_main) {
  Place place;
  place.info.world_size = processes;
  place.info.local_world_size = processes;
  return LaunchRanks(place, rank_main);
}

int LaunchRanks(const Place& place, const RankMain& rank_main) {
  const RankInfo& info = place.info;
  CHECK_GE(info.local_world_size, 1);
  CHECK_EQ(info.world_size, info.nodes * info.local_world_size);
  return Supervisor(place).Run(rank_main);
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
  PrintToStderr(absl::StrCat("ERROR: ", who, status.message(), "\n"));
  return 1;
}

}  // namespace capstan
