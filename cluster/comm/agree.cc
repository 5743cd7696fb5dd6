// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/agree.h"

#include <ATen/ops/from_blob.h>
#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/backend_group.h"
#include "cluster/comm/phase_group.h"
#include "cluster/launch/launcher.h"

namespace capstan {
namespace {

constexpr double kSecondsBetweenVotes = 0.1;

}  // namespace

absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const std::function<std::string(int rank)>& what) {
  const auto of_others = [&what](int rank) {
    return LostPeerError(
        absl::StrCat("rank ", rank, " could not ", what(rank)));
  };
  if (PhaseGroup* const phases = PhaseGroupOf(group)) {
    const absl::StatusOr<int> failed =
        phases->EndPhase(mine, what(group.rank()));
    if (!mine.ok() && !IsLostPeer(mine)) return mine;
    CAPSTAN_RETURN_IF_ERROR(failed.status());
    if (*failed < 0) return absl::OkStatus();
    return of_others(*failed);
  }
  const std::vector<double> failed = FromAllRanks(group, mine.ok() ? 0.0 : 1.0);
  if (!mine.ok()) return mine;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (failed[rank] != 0.0) return of_others(rank);
  }
  return absl::OkStatus();
}

absl::Status Agree(ProcessGroup& group, const absl::Status& mine,
                   const char* what) {
  if (IsLostPeer(mine) && PhaseGroupOf(group) == nullptr) return mine;
  try {
    return Agree(group, mine, [what](int) { return std::string(what); });
  } catch (...) {
    return mine.ok() ? CurrentExceptionToStatus() : mine;
  }
}

absl::Status AgreeAfterCollectives(ProcessGroup& group,
                                   const absl::Status& mine, const char* what) {
  if (!mine.ok() && PhaseGroupOf(group) == nullptr) return mine;
  return Agree(group, mine, what);
}

absl::StatusOr<bool> BrokeOff(ProcessGroup& group, const absl::Status& mine,
                              const char* what,
                              const std::function<void()>& finish) {
  PhaseGroup* const phases = PhaseGroupOf(group);
  if (phases == nullptr) {
    if (!mine.ok()) return mine;
    return false;
  }
  const auto finish_alone = [&]() -> absl::Status {
    phases->StopCommunicating();
    return CatchAll([&] {
      finish();
      return absl::OkStatus();
    });
  };
  absl::Status finished;
  if (!mine.ok()) {
    if (!IsLostPeer(mine) || !phases->PhaseFailed()) {
      phases->FailPhase(absl::StrCat("rank ", group.rank(), " could not ", what,
                                     ": ", mine.message()));
    }
    finished = finish_alone();
  }
  const absl::StatusOr<int> failed = phases->EndPhase(mine, what);
  CAPSTAN_RETURN_IF_ERROR(failed.status());
  const bool broke_off = *failed >= 0;
  // A rank that learns of the failure only here has completed its collectives.
  if (!broke_off) return false;
  CAPSTAN_RETURN_IF_ERROR(Agree(group, finished, what));
  return true;
}

absl::StatusOr<bool> AnyRank(ProcessGroup& group, bool mine) {
  double count[] = {mine ? 1.0 : 0.0};
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    group.AllReduceHost(absl::MakeSpan(count));
    return absl::OkStatus();
  }));
  return count[0] > 0;
}

std::vector<double> FromAllRanks(ProcessGroup& group, double mine) {
  std::vector<double> values(group.size(), 0.0);
  values[group.rank()] = mine;
  group.AllReduceHost(absl::MakeSpan(values));
  return values;
}

std::vector<std::string> FromAllRanks(ProcessGroup& group,
                                      const std::string& mine) {
  const std::vector<double> sizes =
      FromAllRanks(group, static_cast<double>(mine.size()));
  const auto most =
      static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::string padded = mine;
  padded.resize(most);
  std::string all(sizes.size() * most, '\0');
  AllGatherHost(group, padded.data(), most, &all[0]);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    texts.push_back(all.substr(rank * most, static_cast<size_t>(sizes[rank])));
  }
  return texts;
}

void AllGatherHost(ProcessGroup& group, const void* mine, size_t bytes,
                   void* all) {
  if (bytes == 0) return;
  const auto tensor = [](const void* data, size_t size) {
    return at::from_blob(const_cast<void*>(data), {static_cast<int64_t>(size)},
                         at::kByte);
  };
  HostGroupOf(group)
      .AllGather(tensor(all, group.size() * bytes), tensor(mine, bytes))
      ->Wait();
}

absl::StatusOr<std::string> FromRank0(ProcessGroup& group,
                                      const std::string& text) {
  std::string received;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    received = FromAllRanks(group, group.rank() == 0 ? text : "")[0];
    return absl::OkStatus();
  }));
  return received;
}

absl::Status CatchAll(const std::function<absl::Status()>& fn) {
  try {
    return fn();
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

absl::Status StopStatus() {
  return StopRequested() != 0 ? absl::CancelledError("stopped by a signal")
                              : absl::OkStatus();
}

absl::Status AgreeOrStop(ProcessGroup& group, const absl::Status& mine,
                         const char* what) {
  const bool stopped = absl::IsCancelled(mine);
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, stopped ? absl::OkStatus() : mine, what));
  const int signal = StopRequested() != 0 ? StopRequested() : SIGTERM;
  std::vector<double> signals;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    signals = FromAllRanks(group, stopped ? signal : 0);
    return absl::OkStatus();
  }));
  const auto first = std::find_if(signals.begin(), signals.end(),
                                  [](double of_rank) { return of_rank > 0; });
  if (first == signals.end()) return absl::OkStatus();
  AdoptStop(static_cast<int>(*first));
  return absl::CancelledError("stopped by a signal");
}

bool StopPoll::Ask() {
  if (group_ == nullptr) return StopRequested() != 0;
  if (!stop_ && !failed_ && --left_ <= 0) Vote(/*failed=*/false);
  return stop_ || failed_;
}

bool StopPoll::Leave(bool failed) {
  if (group_ == nullptr) return failed;
  // After such a vote no rank is still in its loop.
  if (!stop_ && !failed_) Vote(failed);
  return failed_;
}

void StopPoll::Vote(bool failed) {
  const auto now = std::chrono::steady_clock::now();
  double sums[] = {StopRequested() != 0 ? 1.0 : 0.0, failed ? 1.0 : 0.0,
                   std::chrono::duration<double>(now - voted_).count()};
  group_->AllReduceHost(absl::MakeSpan(sums));
  voted_ = now;
  stop_ = sums[0] > 0;
  failed_ = sums[1] > 0;
  const double round =
      std::max(sums[2] / group_->size() / static_cast<double>(interval_), 1e-6);
  // At most doubled, as rounds get longer while a text grows.
  if (votes_ == Votes::kSometimes) {
    interval_ = std::clamp<int64_t>(
        static_cast<int64_t>(kSecondsBetweenVotes / round), 1, 2 * interval_);
  }
  left_ = interval_;
}

}  // namespace capstan
