// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/run_mirror.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/exit_codes.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/launch/progress.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/metrics/console.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

namespace capstan {
namespace {

// The one connection of this rank to a holder of images, so that a holder has
// few at a time, however many ranks read.
class OneConnection {
 public:
  explicit OneConnection(std::vector<std::string> addresses)
      : addresses_(std::move(addresses)) {}

  absl::Status Read(int holder, int file, int64_t offset, int64_t bytes,
                    char* out) {
    if (holder != holder_) {
      connection_ = std::make_unique<MirrorConnection>(addresses_[holder]);
      holder_ = holder;
    }
    return Annotate(connection_->Read(file, offset, bytes, out),
                    absl::StrCat("what rank ", holder, "'s host holds"));
  }

 private:
  const std::vector<std::string> addresses_;  // by rank
  int holder_ = -1;
  std::unique_ptr<MirrorConnection> connection_;
};

// How long a host may not answer: its process may be busy or stopped for
// longer, but its network isn't.
constexpr double kSilentSeconds = 10.0;

// The rank `next` is lost, and a collective may never end. The launcher starts
// the ranks again.
[[noreturn]] void EndWithout(int next, const std::string& how) {
  std::cerr << absl::StrCat("rank ", next, " is lost: ", how, "\n")
            << std::flush;
  _exit(kHungExitCode);
}

}  // namespace

int64_t MirrorEvery(const RunConfig& config, bool on_gpu) {
  if (config.train().has_mirror_every()) return config.train().mirror_every();
  if (config.launch().max_restarts() == 0) return 0;
  // From a GPU a copy takes as long as a step or two, as the bus is slow, and
  // the update of the step after waits for it.
  constexpr int64_t kOnGpus = 50;
  return on_gpu ? kOnGpus : 1;
}

absl::Status RoomInMemory(int64_t bytes, const RunPlan& plan) {
  const int ranks = plan.rank.local_world_size;
  const auto of_all = [ranks](int64_t of_one) {
    return static_cast<double>(of_one) * static_cast<double>(ranks);
  };
  const double needed = of_all(bytes);
  const MemoryPlan& memory = plan.job.memory;
  int64_t to_come = 0;
  if (plan.group->device().is_cpu() && memory.activations_known) {
    to_come = std::max<int64_t>(
        0, Total(memory.at_peak) - Total(TrackedMemory().live));
  }
  const auto available = static_cast<double>(AvailableHostMemory());
  constexpr double kShare = 0.8;
  if (needed <= kShare * (available - of_all(to_come))) return absl::OkStatus();
  const auto text = [](double count) {
    return ShortBytes(static_cast<int64_t>(count));
  };
  return absl::ResourceExhaustedError(absl::StrCat(
      "it needs ", text(needed), " of memory for ", ranks,
      ranks == 1 ? " rank" : " ranks",
      to_come > 0 ? absl::StrCat(", their steps ", text(of_all(to_come))) : "",
      ", and this host has ", text(available)));
}

absl::Status RunMirror::Begin() {
  const RankInfo& rank = session_.rank;
  ProcessGroup& group = *session_.group;
  restart_ = rank.restart;
  if (Every() == 0) return absl::OkStatus();
  const size_t each = rank.mirror_fds.size() /
                      static_cast<size_t>(std::max(1, rank.local_world_size));
  const bool for_hosts =
      each == RankInfo::kOwnMirrorFilesOfHosts + RankInfo::kHeldMirrorFiles;
  CAPSTAN_ASSIGN_OR_RETURN(
      const bool none,
      AnyRank(group, each == 0 || (rank.nodes > 1 && !for_hosts)));
  if (none) {
    if (session_.config.train().has_mirror_every()) {
      session_.resume_notes.push_back(
          "train.mirror_every has no effect: only with launch.max_restarts and "
          "ranks that this trainer starts itself is there memory that outlives "
          "them");
    }
    return absl::OkStatus();
  }
  const auto first = rank.mirror_fds.begin() +
                     static_cast<std::ptrdiff_t>(each) * rank.local_rank;
  files_.assign(first, first + static_cast<std::ptrdiff_t>(each));
  held_ = for_hosts ? RankInfo::kHeldMirrorFiles : 0;
  if (rank.nodes == 1) return absl::OkStatus();

  MirrorServer::Options options;
  const std::vector<std::string> hosts = absl::StrSplit(NotedHosts(), ',');
  if (static_cast<int>(hosts.size()) == rank.nodes) {
    options.host = hosts[rank.node_rank];
  }
  options.files = files_;
  options.held = held_;
  options.most_connections = 2 * group.size() + 16;
  absl::StatusOr<std::unique_ptr<MirrorServer>> server =
      MirrorServer::Start(options);
  CAPSTAN_ASSIGN_OR_RETURN(const bool failed, AnyRank(group, !server.ok()));
  if (failed) {
    files_.clear();
    NoteNone(server.status(), "a rank can't listen for the others' mirrors");
    return absl::OkStatus();
  }
  server_ = *std::move(server);
  return CatchAll([&] {
    addresses_ = FromAllRanks(group, server_->address());
    return absl::OkStatus();
  });
}

std::vector<FoundMirror> RunMirror::FoundByAll() {
  const RankInfo& rank = session_.rank;
  ProcessGroup& group = *session_.group;
  const size_t files = files_.size();
  std::vector<MirrorImage> mine;
  for (const int file : files_) {
    mine.push_back(MirrorImageIn(file).value_or(MirrorImage()));
  }
  const std::vector<MirrorImage> all = AllGatherHost(group, mine);
  const auto connection = std::make_shared<OneConnection>(addresses_);
  std::vector<FoundMirror> here;
  std::vector<FoundMirror> elsewhere;
  for (int holder = 0; holder < group.size(); ++holder) {
    for (size_t i = 0; i < files; ++i) {
      const MirrorImage& image = all[holder * files + i];
      if (image.key.restart < 0) continue;  // not a whole one
      FoundMirror found;
      found.image = image;
      const int local = rank.local_world_size;
      if (holder / local == rank.node_rank) {
        found.read = ReadMirrorIn(rank.mirror_fds[holder % local * files + i]);
        here.push_back(std::move(found));
      } else {
        found.here = false;
        found.read = [connection, holder, file = static_cast<int>(i)](
                         int64_t offset, int64_t bytes, char* out) {
          return connection->Read(holder, file, offset, bytes, out);
        };
        elsewhere.push_back(std::move(found));
      }
    }
  }
  here.insert(here.end(), elsewhere.begin(), elsewhere.end());
  return here;
}

absl::StatusOr<absl::optional<MirroredStep>> RunMirror::Find() {
  if (files_.empty()) return absl::optional<MirroredStep>();
  std::vector<FoundMirror> found;
  if (server_ == nullptr) {
    found = MirrorsIn(session_.rank.mirror_fds);
  } else {
    CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
      found = FoundByAll();
      return absl::OkStatus();
    }));
  }
  restart_ = RestartAfter(found, restart_);
  return NewestMirroredStep(found);
}

std::vector<int> RunMirror::Held() const {
  if (server_ == nullptr) return {};
  return {files_.end() - held_, files_.end()};
}

absl::Status RunMirror::CheckMemory(int64_t held_bytes) const {
  int64_t bytes = session_.mirror->BytesToAllocate(session_.Checkpointed());
  for (const int file : Held()) bytes += MirrorBytesMissing(file, held_bytes);
  return RoomInMemory(bytes, session_);
}

absl::Status RunMirror::Allocate(int64_t held_bytes) {
  for (const int file : Held()) {
    CAPSTAN_RETURN_IF_ERROR(AllocateMirror(file, held_bytes));
  }
  return session_.mirror->Allocate(session_.Checkpointed());
}

absl::Status RunMirror::SetUp(const absl::optional<MirroredStep>& source) {
  if (files_.empty()) return absl::OkStatus();
  const RankInfo& rank = session_.rank;
  ProcessGroup& group = *session_.group;
  std::unique_ptr<Mirror>& mirror = session_.mirror;
  mirror = std::make_unique<Mirror>(
      std::vector<int>(files_.begin(), files_.end() - held_), restart_, source,
      /*peers=*/server_ != nullptr);
  int64_t held_bytes = 0;
  const int size = group.size();
  if (server_ != nullptr) {
    const int64_t mine = mirror->ImageBytes(session_.Checkpointed());
    CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
      const int before = (group.rank() + size - rank.local_world_size) % size;
      held_bytes = AllGatherHost(group, std::vector<int64_t>{mine})[before];
      return absl::OkStatus();
    }));
  }
  absl::optional<MirrorKey> key;
  if (source.has_value()) key = source->key;
  absl::Status status = CatchAll([&] { return CheckMemory(held_bytes); });
  // Before any rank allocates, as that would count against the others.
  CAPSTAN_ASSIGN_OR_RETURN(bool failed, AnyRank(group, !status.ok()));
  if (!failed) {
    status = CatchAll([&] { return Allocate(held_bytes); });
    CAPSTAN_ASSIGN_OR_RETURN(failed, AnyRank(group, !status.ok()));
  }
  if (failed) {
    mirror.reset();
    for (const int file : files_) FreeMirror(file, key);
    NoteNone(status, "a rank has no memory for it");
    return absl::OkStatus();
  }
  if (server_ == nullptr) return absl::OkStatus();
  server_->TakeIn(key);
  const int next = (group.rank() + rank.local_world_size) % size;
  const double limit = std::min(kSilentSeconds, rank.return_seconds);
  sender_ = std::make_unique<MirrorSender>(
      addresses_[next],
      std::chrono::milliseconds(static_cast<int64_t>(1e3 * limit)),
      [next](const std::string& how) { EndWithout(next, how); });
  return absl::OkStatus();
}

int64_t RunMirror::Every() const {
  return MirrorEvery(session_.config, session_.group->device().is_cuda());
}

absl::StatusOr<bool> RunMirror::Settle() {
  if (session_.mirror == nullptr) return false;  // on all ranks
  ProcessGroup& group = *session_.group;
  const auto missing = [this] {
    AwaitSender();
    return step_ != session_.state.step ||
           (sender_ != nullptr && (sent_step_ != step_ || !sender_->through()));
  };
  CAPSTAN_ASSIGN_OR_RETURN(const bool again, AnyRank(group, missing()));
  if (!again) return true;
  // The mirror before was still on its way.
  CAPSTAN_RETURN_IF_ERROR(
      Copy({/*again=*/true, /*wait=*/true, /*concluded=*/true}));
  CAPSTAN_ASSIGN_OR_RETURN(const bool still, AnyRank(group, missing()));
  return !still;
}

void RunMirror::AwaitSender() const {
  constexpr double kMostSeconds = 30.0;
  const double start = MonotonicSeconds();
  while (sender_ != nullptr && !sender_->through() &&
         MonotonicSeconds() - start < kMostSeconds) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void RunMirror::RanksMayLeave() {
  if (sender_ != nullptr) sender_->MayLeave();
}

bool RunMirror::Due() const {
  return session_.mirror != nullptr &&
         capstan::Due(Every(), session_.state.step);
}

absl::Status RunMirror::Copy(const MirrorHow& how) {
  Mirror& mirror = *session_.mirror;
  const double start = MonotonicSeconds();
  const bool on_gpu = session_.group->device().is_cuda();
  const bool wait = how.wait || !on_gpu;
  if (on_gpu && !mirror.MayBegin()) {
    // The one before is still on its way on some rank.
    if (!wait) {
      if (!how.again) NoteTooSoon();
      return absl::OkStatus();
    }
    CAPSTAN_RETURN_IF_ERROR(CompleteOnAll());
  }
  // A step whose line can't be written isn't one to go on from.
  const Reporter* const reporter = session_.reporter.get();
  const bool written = reporter == nullptr || reporter->status().ok();
  bool through = true;
  if (sender_ == nullptr) {
    if (!written) return absl::OkStatus();
  } else {
    double counts[] = {sender_->through() ? 0.0 : 1.0, written ? 0.0 : 1.0};
    CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
      session_.group->AllReduceHost(absl::MakeSpan(counts));
      return absl::OkStatus();
    }));
    if (counts[1] > 0) return absl::OkStatus();
    through = counts[0] == 0;
    if (through) mirror.PeersHave();
  }
  step_ = session_.state.step;
  const CheckpointParts parts = session_.Checkpointed();
  if (how.concluded) session_.RememberScale();
  absl::optional<Mirror::Copied> whole;
  absl::Status begun;
  if (wait) {
    const absl::StatusOr<Mirror::Copied> copied =
        mirror.Copy(session_.state, parts);
    begun = copied.status();
    if (copied.ok()) whole = *copied;
  } else {
    begun = mirror.Begin(step_, parts);
    if (begun.ok() && how.concluded) {
      mirror.SetState(TrainStateText(session_.state));
    }
  }
  NoteIfNot(begun);
  if (begun.ok() && sender_ != nullptr) {
    sends_ = through;
    if (through) {
      mirror.Sending();
    } else if (!how.again) {
      NoteSkipped();
    }
  }
  if (whole.has_value()) SendWhole(*whole);
  session_.saving_cost.mirror_seconds += MonotonicSeconds() - start;
  return absl::OkStatus();
}

void RunMirror::Complete(bool wait) {
  const auto copied = session_.mirror->Complete(wait);
  NoteIfNot(copied.status());
  if (!copied.ok()) sends_ = false;
  if (copied.ok() && copied->has_value()) SendWhole(**copied);
}

absl::Status RunMirror::CompleteOnAll() {
  Complete(/*wait=*/true);
  return AnyRank(*session_.group, false).status();
}

absl::Status RunMirror::BeforeGoingBack() {
  if (session_.mirror == nullptr) return absl::OkStatus();
  // One of the last step or the one before has the weights that are given up.
  // It is pending on all ranks or on none, as they complete it later in a step.
  if (step_ + 1 < session_.state.step) {
    CAPSTAN_RETURN_IF_ERROR(CompleteOnAll());
  }
  session_.mirror->Drop();
  sends_ = false;
  return absl::OkStatus();
}

void RunMirror::SendWhole(const Mirror::Copied& image) {
  ++session_.saving_cost.mirrored_steps;
  if (!std::exchange(sends_, false)) return;
  sender_->Send(image);
  sent_step_ = step_;
}

void RunMirror::NoteIfNot(const absl::Status& copied) {
  if (copied.ok() || std::exchange(told_not_copied_, true)) return;
  const std::string text = absl::StrCat(
      "from step ", step_, " on the state isn't mirrored, as ",
      copied.message(),
      ": a restart goes on from the last checkpoint or mirror before");
  if (session_.group->rank() == 0) {
    session_.Note(text);
  } else {
    LOG(WARNING) << text;
  }
}

void RunMirror::NoteNone(const absl::Status& mine, const char* others) {
  session_.resume_notes.push_back(absl::StrCat(
      "the state isn't mirrored, so that a restart goes on from the last "
      "checkpoint: ",
      mine.ok() ? others : mine.message()));
}

void RunMirror::NoteTooSoon() {
  if (std::exchange(told_too_soon_, true)) return;
  session_.Note(
      absl::StrCat("the mirror of step ", step_, " isn't whole yet: step ",
                   session_.state.step,
                   " gets none, and so do others that come too soon. A larger "
                   "train.mirror_every copies less"));
}

void RunMirror::NoteSkipped() {
  if (std::exchange(told_, true)) return;
  const absl::Status problem = sender_->problem();
  session_.Note(absl::StrCat(
      "the mirror of step ", sent_step_,
      " is still on its way to the next hosts: that of step ",
      session_.state.step,
      " stays on its own, and so do others that come too soon. A host that is "
      "lost then costs the steps since; a larger train.mirror_every sends less",
      problem.ok() ? "" : absl::StrCat(" (", problem.message(), ")")));
}

}  // namespace capstan
