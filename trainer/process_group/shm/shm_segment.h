// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SEGMENT_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SEGMENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

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

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SEGMENT_H_
