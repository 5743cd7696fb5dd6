// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_MEETING_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_MEETING_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/process_group/shm/shm_segment.h"

namespace capstan {

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
