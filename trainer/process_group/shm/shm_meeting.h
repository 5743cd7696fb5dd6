// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_MEETING_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_MEETING_H_

#include <c10/core/ScalarType.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace capstan {

constexpr int kShmMaxRanks = 256;

// Each rank writes its contributions into its slots round-robin. Data is
// blocked, so the segment stays small.
constexpr int kShmSlots = 4;
constexpr int64_t kShmSlotBytes = 256 << 10;

// Of an error's text.
constexpr int64_t kShmWhyBytes = 512;

// A rank's progress, counted in blocks since the group was created. The named
// stages are those of ShmCollectives; HostPipeline numbers its own.
enum ShmStage : int {
  kPosted,   // wrote its contribution into its slot
  kReduced,  // wrote its part of the sum into its slot
  kTaken,    // read all it needs: others may reuse their slots
  kShmStages = 64,
  // Of failed phases, counted over them (Arrive, and Realign after it).
  kArrived = kShmStages,
  kRealigned,
  kAllShmStages,
};

// A collective as a rank calls it; the same on all ranks, or they are at
// different places of the program.
struct CollectiveCall {
  int64_t sequence;  // number among the group's collectives, from 1
  int64_t size;      // elements per rank
  int32_t type;      // c10::ScalarType; bytes where only these are known
  int32_t root;      // of a broadcast; else -1
  char operation[32];

  bool operator==(const CollectiveCall& other) const;
};

// `operation` has less than 32 characters.
CollectiveCall MakeCall(int64_t sequence, const char* operation, int64_t size,
                        c10::ScalarType type, int root);

// A rank failed in a phase (phase_group.h).
struct PhaseFailure {
  uint64_t phase;   // which, from 1
  int32_t rank;     // of the group
  std::string why;  // "rank 2 could not evaluate: .."
};

// A rank's state in the segment.
struct alignas(128) ShmRankState {
  // Nonzero when nothing more will come from this rank: 1, or 2 + the rank of
  // the run that it lost.
  std::atomic<uint32_t> left;
  // What the rank sleeps for: 1 + rank * kShmStages + stage; 0 while awake or
  // once woken.
  std::atomic<uint32_t> awaits;
  // The stages for any of which it sleeps, a bit for each; likewise.
  std::atomic<uint64_t> awaits_any;
  // The futex it sleeps on; incremented to wake it.
  std::atomic<uint32_t> bell;
  std::atomic<uint64_t> done[kAllShmStages];
  // What it calls in the blocks of its slots, for the first of a collective.
  CollectiveCall calls[kShmSlots];
  // The phase in which it failed, since the group was last realigned; 0: none.
  std::atomic<uint64_t> failed;
  int32_t failed_rank;
  char why[kShmWhyBytes];
};

// Memory shared by the ranks of a group. Unlinked, so it is freed with the last
// process that maps it, however that ends.
class ShmSegment {
 public:
  // `buffers`: further slots that belong to no rank.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(int ranks,
                                                            int buffers = 0);
  // Maps the segment created by another process with this address().
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Open(
      const std::string& address, int ranks, int buffers = 0);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  // At most 60 characters. Valid until CloseFile, which keeps the mapping.
  const std::string& address() const { return address_; }
  void CloseFile();

  ShmRankState* state(int rank) const { return &states_[rank]; }
  // kShmSlotBytes bytes for block `block` of `rank`.
  char* slot(int rank, uint64_t block) const {
    return slots_ +
           (rank * kShmSlots + static_cast<int64_t>(block % kShmSlots)) *
               kShmSlotBytes;
  }
  // The same of a buffer.
  char* buffer(int index, uint64_t block) const {
    return slot(ranks_ + index, block);
  }

 private:
  ShmSegment() = default;
  absl::Status Map(int fd, int ranks, int buffers);

  std::string address_;
  int ranks_ = 0;
  int fd_ = -1;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  ShmRankState* states_ = nullptr;
  char* slots_ = nullptr;
};

// A rank as seen by the others.
struct ShmPeer {
  int name;   // its rank in the run, for messages
  pid_t pid;  // in this process's PID namespace
};

// A rank has completed `stage` of the first `blocks` blocks.
struct ShmCondition {
  int rank;
  ShmStage stage;
  uint64_t blocks;
};

// Ranks of a group publish their progress and wait for each other. A wait ends
// when the awaited rank's process does. One thread, except for Stop and Publish
// (of each stage, one).
class ShmMeeting {
 public:
  // This process is peers[rank]. UNAVAILABLE if a peer has already exited,
  // FAILED_PRECONDITION if the system can't watch processes (pidfd).
  static absl::StatusOr<std::unique_ptr<ShmMeeting>> Create(
      std::unique_ptr<ShmSegment> segment, int rank, std::vector<ShmPeer> peers,
      std::chrono::milliseconds timeout);
  // Calls Leave.
  ~ShmMeeting();
  ShmMeeting(const ShmMeeting&) = delete;
  ShmMeeting& operator=(const ShmMeeting&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  // A rank's number in the run; without argument, this one's.
  int name(int rank) const { return peers_[rank].name; }
  int name() const { return name(rank_); }
  ShmSegment* segment() { return segment_.get(); }

  // This rank completed `stage` of the first `blocks` blocks. Release
  // semantics: its prior writes are visible to ranks that see this.
  void Publish(ShmStage stage, uint64_t blocks);

  // A rank that has not published this, or -1.
  int Lagging(ShmStage stage, uint64_t blocks) const;
  bool HasDone(int rank, ShmStage stage, uint64_t blocks) const;

  // Says what this rank calls from block `block` on. Call before publishing it.
  void Call(uint64_t block, const CollectiveCall& call);
  // Once all have published the block: an error, the same on all ranks, unless
  // they all make the same call.
  absl::Status CheckCalls(uint64_t block) const;

  // Blocks until `rank` has published this. UNAVAILABLE if it never will,
  // ABORTED if a rank has failed in its phase, DEADLINE_EXCEEDED after the
  // timeout, CANCELLED after Stop.
  absl::Status Await(int rank, ShmStage stage, uint64_t blocks);

  // Blocks until one of `conditions` holds (at least one; all needed sooner or
  // later, so that the end of any rank among them ends the wait). Errors as
  // Await's.
  absl::Status AwaitAny(const std::vector<ShmCondition>& conditions);

  // A rank, this one or one of another host for which this one speaks, has
  // failed in its phase: ends all waits for stages of collectives with ABORTED,
  // here and in meetings that follow, until all ranks have realigned. The first
  // call counts. Thread-safe.
  void Fail(const PhaseFailure& failure);
  // The failure of the earliest phase, of the lowest rank.
  absl::optional<PhaseFailure> Failure() const;
  // Waits here end for failures known to `root`, too, which outlives this.
  void Follow(const ShmMeeting* root) { root_ = root; }
  const ShmMeeting& root() const { return *root_; }
  // Has all ranks look for failures at once.
  void Ring();
  // After a failure all ranks call, when in no collective: Arrive; Realign once
  // they have read Failure; Reset, also on meetings that follow, which makes
  // this rank's state what it was at first; and Realign again. Arrive and
  // Realign block until all ranks have called them. Errors as Await's.
  absl::Status Arrive() { return Meet(kArrived); }
  absl::Status Realign() { return Meet(kRealigned); }
  void Reset();

  // Tells the others that nothing more will come from this rank, because it
  // lost rank `lost` of the run if that isn't -1.
  void Leave(int lost = -1);
  // Ends this rank's current and future waits with `status`; the first call
  // counts. Thread-safe.
  void Stop(
      const absl::Status& status = absl::CancelledError("the group is closed"));

 private:
  ShmMeeting(std::unique_ptr<ShmSegment> segment, int rank,
             std::vector<ShmPeer> peers, std::chrono::milliseconds timeout);

  // Sleeps until the bell differs from `bell` or kLook has passed.
  void Sleep(uint32_t bell);
  void Wake(int rank);
  // UNAVAILABLE if it has.
  absl::Status HasLeft(int rank) const;
  absl::Status WhyNot(int rank, ShmStage stage,
                      std::chrono::steady_clock::time_point since);
  // Publishes the next number of `stage` and awaits the others'.
  absl::Status Meet(ShmStage stage);

  const std::unique_ptr<ShmSegment> segment_;
  const int rank_;
  const std::vector<ShmPeer> peers_;
  const std::chrono::milliseconds timeout_;
  const ShmMeeting* root_ = this;
  // By rank; -1 for this one.
  std::vector<int> process_fds_;
  std::atomic<bool> stopped_{false};
  std::mutex stop_mutex_;
  absl::Status stop_status_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_MEETING_H_
