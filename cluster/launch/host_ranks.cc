// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/host_ranks.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
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
