// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_MEETING_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_MEETING_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

constexpr int kShmMaxRanks = 256;

// Each rank writes what it has for the others into its slots, one after the
// other. Blocks of data go through them, so the segment stays small.
constexpr int kShmSlots = 4;
constexpr int64_t kShmSlotBytes = 256 << 10;

// How far a rank is, counted in blocks since the group began.
enum ShmStage {
  kPosted,   // it has written its contribution into its slot
  kReduced,  // it has written its part of the sum into its slot
  kTaken,    // it has read all that it needs: the others' slots are free again
  kShmStages,
};

// A rank's words in the segment.
struct alignas(128) ShmRankState {
  std::atomic<uint64_t> done[kShmStages];
  // Nothing more will come from this rank.
  std::atomic<uint32_t> left;
  // What the rank sleeps for: 1 + rank * kShmStages + stage. 0 when it is awake
  // or has been woken.
  std::atomic<uint32_t> awaits;
  // The futex that it sleeps on. Raised to wake it.
  std::atomic<uint32_t> bell;
};

// Memory that the ranks of a group share. It has no name in any file system,
// so it is gone with the last process that has it mapped, however that ends.
class ShmSegment {
 public:
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(int ranks);
  // Maps what another process, whose segment has this address(), has created.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Open(
      const std::string& address, int ranks);
  ~ShmSegment();
  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;

  // At most 60 characters. Holds until CloseFile, which leaves it mapped.
  const std::string& address() const { return address_; }
  void CloseFile();

  ShmRankState* state(int rank) const { return &states_[rank]; }
  // kShmSlotBytes for block number `block` of `rank`.
  char* slot(int rank, uint64_t block) const {
    return slots_ +
           (rank * kShmSlots + static_cast<int64_t>(block) % kShmSlots) *
               kShmSlotBytes;
  }

 private:
  ShmSegment() = default;
  absl::Status Map(int fd, int ranks);

  std::string address_;
  int fd_ = -1;
  void* memory_ = nullptr;
  size_t bytes_ = 0;
  ShmRankState* states_ = nullptr;
  char* slots_ = nullptr;
};

// A rank of a group, seen by the others.
struct ShmPeer {
  int name;   // its rank in the run, for messages
  pid_t pid;  // in this process's name space
};

// Where the ranks of a group tell each other how far they are, and wait for
// each other. Waiting ends when the other rank's process does. One thread uses
// it, but for Stop.
class ShmMeeting {
 public:
  // This process is peers[rank]. UNAVAILABLE when a peer has ended already,
  // FAILED_PRECONDITION when the system can't watch processes.
  static absl::StatusOr<std::unique_ptr<ShmMeeting>> Create(
      std::unique_ptr<ShmSegment> segment, int rank, std::vector<ShmPeer> peers,
      std::chrono::milliseconds timeout);
  // Leaves.
  ~ShmMeeting();
  ShmMeeting(const ShmMeeting&) = delete;
  ShmMeeting& operator=(const ShmMeeting&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }
  // A rank's number in the run; without a rank, this one's.
  int name(int rank) const { return peers_[rank].name; }
  int name() const { return name(rank_); }
  ShmSegment* segment() { return segment_.get(); }

  // This rank has done `stage` of the first `blocks` blocks. What it has
  // written before is seen by those who see this.
  void Publish(ShmStage stage, uint64_t blocks);

  // A rank that has not, or -1.
  int Lagging(ShmStage stage, uint64_t blocks) const;
  bool HasDone(int rank, ShmStage stage, uint64_t blocks) const;

  // Waits until `rank` has. UNAVAILABLE when it never will, DEADLINE_EXCEEDED
  // after the timeout, CANCELLED after Stop.
  absl::Status Await(int rank, ShmStage stage, uint64_t blocks);

  // Tells the others that nothing more will come from this rank.
  void Leave();
  // Ends this rank's wait, and those to come. Any thread may call it.
  void Stop();

 private:
  ShmMeeting(std::unique_ptr<ShmSegment> segment, int rank,
             std::vector<ShmPeer> peers, std::chrono::milliseconds timeout);

  // Sleeps until the bell is no longer `bell`, or kLook has passed.
  void Sleep(uint32_t bell);
  void Wake(int rank);
  bool HasLeft(int rank) const;
  absl::Status WhyNot(int rank, std::chrono::steady_clock::time_point since);

  const std::unique_ptr<ShmSegment> segment_;
  const int rank_;
  const std::vector<ShmPeer> peers_;
  const std::chrono::milliseconds timeout_;
  // By rank; -1 for this one.
  std::vector<int> process_fds_;
  std::atomic<bool> stopped_{false};
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_MEETING_H_
