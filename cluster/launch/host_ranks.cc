// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/host_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/exit_codes.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace capstan {

void PrintToStderr(absl::string_view text) {
  // A progress bar may occupy the terminal's line.
  const bool bar = isatty(STDERR_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  WriteAll(STDERR_FILENO, bar && !text.empty() ? absl::StrCat("\r\033[K", text)
                                               : std::string(text));
}

absl::Status HostRanks::Fork(const Place& place, RankInfo info,
                             const std::function<void()>& let_go,
                             const RankMain& rank_main) {
  first_ = info.nodes > 1 ? info.node_rank * info.local_world_size : 0;
  const int listen_fd = info.listen_fd;
  for (int local = 0; local < info.local_world_size; ++local) {
    info.rank = first_ + local;
    info.local_rank = local;
    info.gpu = place.gpu_ids.empty() ? -1 : place.gpu_ids[local];
    info.listen_fd = info.rank == 0 ? listen_fd : -1;
    const auto in_child = [&] {
      for (const auto& other : ranks_) other->CloseInChild();
      if (info.listen_fd != listen_fd) close(listen_fd);
      let_go();
    };
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<RankProcess> process,
                             RankProcess::Start(info, in_child, rank_main));
    ranks_.push_back(std::move(process));
  }
  return absl::OkStatus();
}

bool HostRanks::AllExited() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->exited(); });
}

bool HostRanks::AllHaveOutcome() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    return rank->Outcome().has_value();
  });
}

bool HostRanks::AllAre(RankOutcome::Kind kind) const {
  return AllExited() &&
         std::all_of(ranks_.begin(), ranks_.end(), [kind](const auto& rank) {
           return rank->Outcome()->kind == kind;
         });
}

absl::optional<RankOutcome> HostRanks::Stopped() const {
  absl::optional<RankOutcome> stopped;
  for (const auto& rank : ranks_) {
    const absl::optional<RankOutcome> outcome = rank->Outcome();
    if (!outcome.has_value() || outcome->kind != RankOutcome::kStopped) {
      continue;
    }
    if (!stopped.has_value() || stopped->stop_signal == 0) stopped = outcome;
  }
  return stopped;
}

void HostRanks::NoteFailures(bool stopping) {
  for (int rank = 0; rank < size(); ++rank) {
    const absl::optional<RankOutcome> outcome = Outcome(rank);
    if (!outcome.has_value() || outcome->kind == RankOutcome::kOk) continue;
    if (outcome->kind == RankOutcome::kLeft) continue;
    if (outcome->kind == RankOutcome::kStopped &&
        (outcome->stop_signal != 0 || stopping)) {
      continue;
    }
    if (std::find(failures_.begin(), failures_.end(), rank) !=
        failures_.end()) {
      continue;
    }
    if (failures_.empty()) failed_at_ = std::chrono::steady_clock::now();
    failures_.push_back(rank);
  }
}

int HostRanks::Cause() const {
  const auto own =
      std::find_if(failures_.begin(), failures_.end(), [this](int rank) {
        return Outcome(rank)->kind != RankOutcome::kLostPeer;
      });
  return own != failures_.end() ? *own : failures_.front();
}

std::string HostRanks::CauseText() const {
  const int cause = Cause();
  const std::string message = Outcome(cause)->message;
  const bool all_say_so =
      static_cast<int>(failures_.size()) == size() &&
      std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
        return rank->Outcome()->message == message;
      });
  return all_say_so ? message
                    : absl::StrCat("[rank ", first_ + cause, "] ", message);
}

bool HostRanks::AnyHung() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
    const absl::optional<RankOutcome> outcome = rank->Outcome();
    return outcome.has_value() && outcome->kind == RankOutcome::kDied &&
           outcome->exit_code == kHungExitCode;
  });
}

int HostRanks::Frozen() const {
  const auto frozen =
      std::find_if(ranks_.begin(), ranks_.end(),
                   [](const auto& rank) { return rank->IsFrozen(); });
  return frozen == ranks_.end() ? -1
                                : static_cast<int>(frozen - ranks_.begin());
}

void HostRanks::AddTo(std::vector<pollfd>* fds) const {
  for (const auto& rank : ranks_) {
    fds->push_back({rank->output_fd(), POLLIN, 0});
    fds->push_back({rank->report_fd(), POLLIN, 0});
  }
}

void HostRanks::Handle(const pollfd* fds) {
  for (const auto& rank : ranks_) {
    if (fds++->revents != 0) PrintToStderr(rank->ReadOutput());
    if (fds++->revents != 0) rank->ReadReport();
  }
}

void HostRanks::Reap() {
  for (const auto& rank : ranks_) rank->Reap();
}

void HostRanks::SignalAll(int signal) const {
  for (const auto& rank : ranks_) rank->Signal(signal);
}

void HostRanks::KillAll() {
  for (const auto& rank : ranks_) rank->Kill();
  for (const auto& rank : ranks_) rank->WaitForExit();
}

void HostRanks::PrintOutputLeft() {
  for (const auto& rank : ranks_) {
    PrintToStderr(rank->exited() ? rank->Drain() : rank->ReadOutput());
  }
}

}  // namespace capstan
