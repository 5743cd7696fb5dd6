// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_COLLECTIVES_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_COLLECTIVES_H_

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "trainer/process_group/shm/shm_meeting.h"
#include "trainer/process_group/shm/shm_sum.h"

namespace capstan {

// Synchronous collectives over shared memory. Data passes block by block
// through the ranks' slots; ranks may be up to kShmSlots blocks apart. Each
// element is summed once, by one rank, in rank order, so that results are
// bit-identical on all ranks and in every run. All ranks must make the same
// calls with the same sizes. One thread at a time. Errors are
// ShmMeeting::Await's; after one, nothing else may be called.
class ShmCollectives {
 public:
  explicit ShmCollectives(ShmMeeting* meeting) : meeting_(meeting) {}

  // Returns once all ranks have called it.
  absl::Status Barrier();
  // Sums data [size], with elements of `width` bytes (1, 2, 4 or 8), in place.
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

  // Runs `blocks` blocks: post(k); once all ranks have posted block k,
  // reduce(k); once all have reduced it, take(k). Blocks overlap. `reduce` may
  // be null: take(k) then follows post(k) on all ranks.
  absl::Status Run(int64_t blocks, const Step& post, const Step& reduce,
                   const Step& take);
  absl::Status AllReduceSmall(char* data, int64_t size, int width,
                              SumFunction sum);

  int rank() const { return meeting_->rank(); }
  int ranks() const { return meeting_->size(); }
  // `rank`'s slot for block `k` of the current collective.
  char* slot(int rank, int64_t k) const {
    return meeting_->segment()->slot(rank, base_ + k);
  }
  // Bytes of a slot per rank, in whole cache lines.
  int64_t PieceBytes() const { return kShmSlotBytes / ranks() / 64 * 64; }

  ShmMeeting* const meeting_;
  // Blocks of all earlier collectives.
  uint64_t base_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_COLLECTIVES_H_
