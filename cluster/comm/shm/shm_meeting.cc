// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/shm/shm_meeting.h"

#include <c10/core/ScalarType.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace capstan {
namespace {

constexpr int kMostRanks = 256;

// Where the slots begin in the segment's data: at a page.
int64_t SlotsBegin(int ranks) {
  constexpr int64_t kPage = 4096;
  const int64_t states = SharedMemory::kHeaderBytes +
                         ranks * static_cast<int64_t>(sizeof(ShmRankState));
  return (states + kPage - 1) / kPage * kPage - SharedMemory::kHeaderBytes;
}

int64_t SegmentBytes(int ranks, int buffers) {
  return SlotsBegin(ranks) + (ranks + buffers) * kShmSlots * kShmSlotBytes;
}

using Clock = std::chrono::steady_clock;

// How often a waiting rank checks whether the other is alive.
constexpr long kLookNanoseconds = 100 * 1000 * 1000;
// Checks before sleeping: a few microseconds. Ranks and their computations
// share the cores; on a single one nobody else makes progress meanwhile.
int Spins() {
  static const int spins = get_nprocs_conf() > 1 ? 200 : 0;
  return spins;
}

static_assert(std::atomic<uint32_t>::is_always_lock_free &&
                  std::atomic<uint64_t>::is_always_lock_free,
              "atomics in shared memory must not need locks");

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

uint32_t AwaitCode(int rank, ShmStage stage) {
  return 1 + rank * kAllShmStages + stage;
}

// None for those that nobody awaits among others.
uint64_t StageBit(ShmStage stage) {
  return stage < kShmStages ? uint64_t{1} << stage : 0;
}

std::string TypeText(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Byte:
      return "bytes";
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::Half:
      return "float16";
    default:
      return absl::AsciiStrToLower(c10::toString(type));
  }
}

// "reduce-scatter of 900 float32 as its collective 812".
std::string CallText(const CollectiveCall& call) {
  std::string text = call.operation;
  if (call.size > 0) {
    const auto type = static_cast<c10::ScalarType>(call.type);
    absl::StrAppend(&text, " of ", call.size, " ", TypeText(type));
  }
  if (call.root >= 0) absl::StrAppend(&text, " from its rank ", call.root);
  return absl::StrCat(text, " as its collective ", call.sequence);
}

}  // namespace

ShmSegment::ShmSegment(std::unique_ptr<SharedMemory> memory, int ranks)
    : memory_(std::move(memory)),
      ranks_(ranks),
      slots_(memory_->data() + SlotsBegin(ranks)) {}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Create(int ranks,
                                                               int buffers) {
  if (ranks > kMostRanks) {
    return absl::OutOfRangeError(
        absl::StrCat("shared memory is for up to ", kMostRanks, " ranks"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<SharedMemory> memory,
      SharedMemory::Create(SegmentBytes(ranks, buffers), ranks > 1));
  // It is zero-initialized, as are the states.
  return absl::WrapUnique(new ShmSegment(std::move(memory), ranks));
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Open(
    const std::string& address, int ranks, int buffers) {
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<SharedMemory> memory,
      SharedMemory::Open(address, SegmentBytes(ranks, buffers)));
  return absl::WrapUnique(new ShmSegment(std::move(memory), ranks));
}

absl::StatusOr<std::unique_ptr<ShmMeeting>> ShmMeeting::Create(
    std::unique_ptr<ShmSegment> segment, int rank, std::vector<ShmPeer> peers,
    std::chrono::milliseconds timeout) {
  auto meeting = absl::WrapUnique(
      new ShmMeeting(std::move(segment), rank, std::move(peers), timeout));
  for (int peer = 0; peer < meeting->size(); ++peer) {
    int fd = -1;
    if (peer != rank) {
      fd = static_cast<int>(
          syscall(SYS_pidfd_open, meeting->peers_[peer].pid, 0));
      if (fd < 0 && errno == ESRCH) {
        return absl::UnavailableError(absl::StrCat(
            "rank ", meeting->peers_[peer].name, " has left the run"));
      }
      if (fd < 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("can't watch processes: ", strerror(errno)));
      }
    }
    meeting->process_fds_.push_back(fd);
  }
  return meeting;
}

ShmMeeting::ShmMeeting(std::unique_ptr<ShmSegment> segment, int rank,
                       std::vector<ShmPeer> peers,
                       std::chrono::milliseconds timeout)
    : segment_(std::move(segment)),
      rank_(rank),
      peers_(std::move(peers)),
      timeout_(timeout) {}

ShmMeeting::~ShmMeeting() {
  Leave();
  for (const int fd : process_fds_) {
    if (fd >= 0) close(fd);
  }
}

void ShmMeeting::Publish(ShmStage stage, uint64_t blocks) {
  segment_->state(rank_)->done[stage].store(blocks);
  for (int peer = 0; peer < size(); ++peer) {
    ShmRankState* const state = segment_->state(peer);
    // Wake it once only.
    uint32_t code = AwaitCode(rank_, stage);
    if (state->awaits.load() == code &&
        state->awaits.compare_exchange_strong(code, 0)) {
      Wake(peer);
    }
    if ((state->awaits_any.load() & StageBit(stage)) != 0 &&
        state->awaits_any.exchange(0) != 0) {
      Wake(peer);
    }
  }
}

bool ShmMeeting::HasDone(int rank, ShmStage stage, uint64_t blocks) const {
  return segment_->state(rank)->done[stage].load() >= blocks;
}

int ShmMeeting::Lagging(ShmStage stage, uint64_t blocks) const {
  for (int peer = 0; peer < size(); ++peer) {
    if (!HasDone(peer, stage, blocks)) return peer;
  }
  return -1;
}

void ShmMeeting::Call(uint64_t block, const CollectiveCall& call) {
  segment_->state(rank_)->calls[block % kShmSlots] = call;
}

absl::Status ShmMeeting::CheckCalls(uint64_t block) const {
  const CollectiveCall& first = segment_->state(0)->calls[block % kShmSlots];
  for (int peer = 1; peer < size(); ++peer) {
    const CollectiveCall& call =
        segment_->state(peer)->calls[block % kShmSlots];
    if (call == first) continue;
    return absl::InternalError(absl::StrCat(
        "rank ", name(peer), " calls ", CallText(call), ", rank ", name(0), " ",
        CallText(first),
        ": ranks must make the same collectives in the same order (a bug of "
        "the strategy, objective or model)"));
  }
  return absl::OkStatus();
}

CollectiveCall MakeCall(int64_t sequence, const char* operation, int64_t size,
                        c10::ScalarType type, int root) {
  CollectiveCall call = {sequence, size, static_cast<int32_t>(type), root, {}};
  strncpy(call.operation, operation, sizeof(call.operation) - 1);
  return call;
}

bool CollectiveCall::operator==(const CollectiveCall& other) const {
  return sequence == other.sequence && size == other.size &&
         type == other.type && root == other.root &&
         strcmp(operation, other.operation) == 0;
}

absl::Status ShmMeeting::Await(int rank, ShmStage stage, uint64_t blocks) {
  for (int spin = Spins(); spin > 0; --spin) {
    if (HasDone(rank, stage, blocks)) return absl::OkStatus();
    Pause();
  }
  ShmRankState* const mine = segment_->state(rank_);
  const Clock::time_point begin = Clock::now();
  absl::Status status;
  while (status.ok()) {
    const uint32_t bell = mine->bell.load();
    // Either the other rank sees this, or the next line sees its progress.
    mine->awaits.store(AwaitCode(rank, stage));
    if (HasDone(rank, stage, blocks)) break;
    status = WhyNot(rank, stage, begin);
    // It may have completed its part before it left.
    if (HasDone(rank, stage, blocks)) status = absl::OkStatus();
    if (status.ok()) Sleep(bell);
  }
  mine->awaits.store(0);
  return status;
}

absl::Status ShmMeeting::AwaitAny(const std::vector<ShmCondition>& conditions) {
  const auto holds = [&](const ShmCondition& condition) {
    return HasDone(condition.rank, condition.stage, condition.blocks);
  };
  const auto any_holds = [&] {
    return std::any_of(conditions.begin(), conditions.end(), holds);
  };
  for (int spin = Spins(); spin > 0; --spin) {
    if (any_holds()) return absl::OkStatus();
    Pause();
  }
  uint64_t stages = 0;
  for (const ShmCondition& condition : conditions) {
    stages |= StageBit(condition.stage);
  }
  ShmRankState* const mine = segment_->state(rank_);
  const Clock::time_point begin = Clock::now();
  absl::Status status;
  while (status.ok()) {
    const uint32_t bell = mine->bell.load();
    // As in Await.
    mine->awaits_any.store(stages);
    if (any_holds()) break;
    for (const ShmCondition& condition : conditions) {
      const absl::Status why = WhyNot(condition.rank, condition.stage, begin);
      if (!why.ok() && !holds(condition)) status.Update(why);
    }
    if (status.ok()) Sleep(bell);
  }
  mine->awaits_any.store(0);
  return status;
}

absl::Status ShmMeeting::WhyNot(int rank, ShmStage stage,
                                Clock::time_point since) {
  if (stopped_) {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    return stop_status_;
  }
  if (stage < kShmStages) {
    const absl::optional<PhaseFailure> failure = root_->Failure();
    if (failure.has_value()) return absl::AbortedError(failure->why);
  }
  // Other threads of this process have their own limits.
  if (rank == rank_) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(HasLeft(rank));
  if (Clock::now() - since >= timeout_) {
    return absl::DeadlineExceededError(
        absl::StrCat("rank ", peers_[rank].name, " has not come in ",
                     timeout_.count() / 1000, " s"));
  }
  return absl::OkStatus();
}

absl::Status ShmMeeting::HasLeft(int rank) const {
  const uint32_t left = segment_->state(rank)->left.load();
  pollfd process = {process_fds_[rank], POLLIN, 0};
  if (left == 0 && poll(&process, 1, 0) <= 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "rank ", peers_[rank].name,
      left > 1 ? absl::StrCat(", which lost rank ", left - 2, ",") : "",
      " has left the run"));
}

void ShmMeeting::Sleep(uint32_t bell) {
  const timespec limit = {0, kLookNanoseconds};
  syscall(SYS_futex, &segment_->state(rank_)->bell, FUTEX_WAIT, bell, &limit,
          nullptr, 0);
}

void ShmMeeting::Wake(int rank) {
  std::atomic<uint32_t>* const bell = &segment_->state(rank)->bell;
  ++*bell;
  syscall(SYS_futex, bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void ShmMeeting::Fail(const PhaseFailure& failure) {
  ShmRankState* const mine = segment_->state(rank_);
  {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    if (mine->failed.load() != 0) return;
    const size_t length =
        std::min<size_t>(failure.why.size(), kShmWhyBytes - 1);
    std::copy_n(failure.why.data(), length, mine->why);
    mine->why[length] = '\0';
    mine->failed_rank = failure.rank;
    mine->failed.store(failure.phase);
  }
  Ring();
}

void ShmMeeting::Ring() {
  for (int peer = 0; peer < size(); ++peer) Wake(peer);
}

absl::optional<PhaseFailure> ShmMeeting::Failure() const {
  const ShmRankState* first = nullptr;
  uint64_t least = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const ShmRankState* const state = segment_->state(peer);
    const uint64_t phase = state->failed.load();
    if (phase == 0 || (first != nullptr && phase >= least)) continue;
    first = state;
    least = phase;
  }
  if (first == nullptr) return absl::nullopt;
  return PhaseFailure{least, first->failed_rank, first->why};
}

absl::Status ShmMeeting::Meet(ShmStage stage) {
  const uint64_t count = segment_->state(rank_)->done[stage].load() + 1;
  Publish(stage, count);
  for (int peer = 0; peer < size(); ++peer) {
    CAPSTAN_RETURN_IF_ERROR(Await(peer, stage, count));
  }
  return absl::OkStatus();
}

void ShmMeeting::Reset() {
  ShmRankState* const mine = segment_->state(rank_);
  for (int stage = 0; stage < kShmStages; ++stage) mine->done[stage].store(0);
  mine->failed.store(0);
}

void ShmMeeting::Leave(int lost) {
  uint32_t here = 0;
  if (!segment_->state(rank_)->left.compare_exchange_strong(
          here, lost < 0 ? 1 : 2 + lost)) {
    return;
  }
  for (int peer = 0; peer < size(); ++peer) Wake(peer);
}

void ShmMeeting::Stop(const absl::Status& status) {
  {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    if (stopped_) return;
    stop_status_ = status;
    stopped_ = true;
  }
  Wake(rank_);
}

}  // namespace capstan
