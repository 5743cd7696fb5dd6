// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_COLLECTIVES_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_COLLECTIVES_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "trainer/process_group/shm/shm_meeting.h"
#include "trainer/process_group/shm/shm_sum.h"

namespace capstan {

// The collectives of a group whose ranks share memory, each from its begin to
// its end in the calling thread. Data goes through the ranks' slots block by
// block; ranks may be up to kShmSlots blocks apart. Sums are made once, by one
// rank, in the order of the ranks, so all ranks get the same bits and each run
// does. All ranks must call the same with the same sizes. One thread at a time.
// Errors are ShmMeeting::Await's; after one, nothing else may be called.
class ShmCollectives {
 public:
  explicit ShmCollectives(ShmMeeting* meeting) : meeting_(meeting) {}

  // Returns when all ranks have come.
  absl::Status Barrier();
  // data [size] of elements of `width` bytes (1, 2, 4 or 8), summed in place.
  absl::Status AllReduce(char* data, int64_t size, int width, SumFunction sum);
  // output [size], input [size * ranks]; output may be this rank's slice of
  // the input, or overlap nothing.
  absl::Status ReduceScatter(char* output, const char* input, int64_t size,
                             int width, SumFunction sum);
  // output [bytes * ranks], input [bytes]; input may be this rank's slice of
  // the output, or overlap nothing.
  absl::Status AllGather(char* output, const char* input, int64_t bytes);
  absl::Status Broadcast(char* data, int64_t bytes, int root);

 private:
  using Step = std::function<void(int64_t block)>;

  // Does `blocks` blocks: post(k), then, once all ranks have posted block k,
  // reduce(k), and, once all have done that, take(k). Blocks overlap. `reduce`
  // may be null: take(k) follows when all have posted.
  absl::Status Run(int64_t blocks, const Step& post, const Step& reduce,
                   const Step& take);
  absl::Status AllReduceSmall(char* data, int64_t size, int width,
                              SumFunction sum);

  int rank() const { return meeting_->rank(); }
  int ranks() const { return meeting_->size(); }
  // `rank`'s slot for block `k` of the collective under way.
  char* slot(int rank, int64_t k) const {
    return meeting_->segment()->slot(rank, base_ + k);
  }
  // Bytes of a slot for each rank: whole cache lines.
  int64_t PieceBytes() const { return kShmSlotBytes / ranks() / 64 * 64; }

  ShmMeeting* const meeting_;
  // Blocks of all collectives before this one.
  uint64_t base_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_COLLECTIVES_H_
