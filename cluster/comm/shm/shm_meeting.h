// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_SHM_SHM_MEETING_H_
#define CAPSTAN_CLUSTER_COMM_SHM_SHM_MEETING_H_

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
#include "base/shared_memory.h"

namespace capstan {

// Each rank writes its contributions into its slots round-robin. Data is
// blocked, so the segment stays small.
constexpr int kShmSlots = 4;
constexpr int64_t kShmSlotBytes = 256 << 10;

// The size of an error's text.
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

// A rank's call of a collective. If calls differ, the ranks are at different
// places in the program.
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
  // Nonzero once this rank has left: 1, or 2 + the rank of the run that it
  // lost.
  std::atomic<uint32_t> left;
  // What the rank sleeps for, 1 + rank * kShmStages + stage; 0 while it is
  // awake or once it is woken.
  std::atomic<uint32_t> awaits;
  // The set of stages for any of which it sleeps, a bit for each; likewise.
  std::atomic<uint64_t> awaits_any;
  // The futex it sleeps on; incremented to wake it.
  std::atomic<uint32_t> bell;
  std::atomic<uint64_t> done[kAllShmStages];
  // The calls whose first blocks are in its slots.
  CollectiveCall calls[kShmSlots];
  // The phase in which it failed, since the group was last realigned; 0: none.
  std::atomic<uint64_t> failed;
  int32_t failed_rank;
  char why[kShmWhyBytes];
};

// Memory shared by the ranks of a group.
class ShmSegment {
 public:
  // `buffers`: further slots that belong to no rank.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(int ranks,
                                                            int buffers = 0);
  // Maps the segment created by another process with this address().
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Open(
      const std::string& address, int ranks, int buffers = 0);

  // SharedMemory's.
  const std::string& address() const { return memory_->address(); }
  void CloseFile() { memory_->CloseFile(); }

  ShmRankState* state(int rank) const {
    return reinterpret_cast<ShmRankState*>(memory_->data()) + rank;
  }
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
  ShmSegment(std::unique_ptr<SharedMemory> memory, int ranks);

  const std::unique_ptr<SharedMemory> memory_;
  const int ranks_;
  char* const slots_;
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
// when the awaited rank's process does. Used by one thread, except for Stop and
// Publish (one thread for each stage).
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

  // Tells that this rank completed `stage` of the first `blocks` blocks.
  // Release semantics: its prior writes are visible to ranks that see this.
  void Publish(ShmStage stage, uint64_t blocks);

  // Returns a rank that has not published this, or -1.
  int Lagging(ShmStage stage, uint64_t blocks) const;
  bool HasDone(int rank, ShmStage stage, uint64_t blocks) const;

  // Records the collective that this rank calls from block `block` on, before
  // the block is published.
  void Call(uint64_t block, const CollectiveCall& call);
  // Returns an error, the same on all ranks, unless all make the same call.
  // Used once all have published the block.
  absl::Status CheckCalls(uint64_t block) const;

  // Blocks until `rank` has published this. UNAVAILABLE if it has left, ABORTED
  // if a rank has failed in its phase, DEADLINE_EXCEEDED after the timeout,
  // CANCELLED after Stop.
  absl::Status Await(int rank, ShmStage stage, uint64_t blocks);

  // Blocks until one of `conditions` holds. There must be at least one, and all
  // must be needed eventually, since the end of any of their ranks ends the
  // wait. Errors as Await's.
  absl::Status AwaitAny(const std::vector<ShmCondition>& conditions);

  // Records that a rank, this one or one of another host on whose behalf this
  // one calls, has failed in its phase. Ends all waits for stages of
  // collectives with ABORTED, here and in meetings that Follow this one, until
  // all ranks have realigned. Only the first call counts. Thread-safe.
  void Fail(const PhaseFailure& failure);
  // Returns the failure of the earliest phase and, in it, of the lowest rank.
  absl::optional<PhaseFailure> Failure() const;
  // Makes failures known to `root`, which must outlive this, end waits here,
  // too.
  void Follow(const ShmMeeting* root) { root_ = root; }
  const ShmMeeting& root() const { return *root_; }
  // Wakes all ranks so that they check for failures.
  void Ring();
  // After a failure all ranks, outside of collectives, call Arrive; then
  // Realign, once they have read Failure; then Reset, also on meetings that
  // Follow this one, which restores this rank's initial state; and then Realign
  // again. Arrive and Realign block until all ranks have called them. Errors as
  // Await's.
  absl::Status Arrive() { return Meet(kArrived); }
  absl::Status Realign() { return Meet(kRealigned); }
  void Reset();

  // Tells the others that this rank has left, because it lost rank `lost` of
  // the run if that isn't -1.
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

#endif  // CAPSTAN_CLUSTER_COMM_SHM_SHM_MEETING_H_
