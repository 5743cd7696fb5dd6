// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_SHM_SHM_COLLECTIVES_H_
#define CAPSTAN_CLUSTER_COMM_SHM_SHM_COLLECTIVES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "cluster/comm/shm/shm_meeting.h"
#include "cluster/comm/shm/shm_sum.h"
#include "cluster/comm/sync_collectives.h"

namespace capstan {

// Collectives over shared memory. Data passes block by block through the ranks'
// slots; ranks may be up to kShmSlots blocks apart. Each element is summed
// once, by one rank. Errors are ShmMeeting::Await's.
class ShmCollectives final : public SyncCollectives {
 public:
  explicit ShmCollectives(std::unique_ptr<ShmMeeting> meeting)
      : meeting_(std::move(meeting)) {}

  int rank() const override { return meeting_->rank(); }
  int size() const override { return meeting_->size(); }
  int name(int rank) const override { return meeting_->name(rank); }

  absl::Status Barrier() override;
  absl::Status AllReduce(char* data, int64_t size,
                         c10::ScalarType type) override;
  absl::Status ReduceScatter(char* output, const char* input, int64_t size,
                             c10::ScalarType type) override;
  absl::Status AllGather(char* output, const char* input,
                         int64_t bytes) override;
  absl::Status Broadcast(char* data, int64_t bytes, int root) override;
  absl::Status AllToAll(char* output, const char* input,
                        int64_t bytes) override;
  absl::Status SendRecv(char* output, int from, const char* input, int to,
                        int64_t bytes) override;
  ShmMeeting* meeting() override { return meeting_.get(); }
  void Reset() override;
  void Leave() override { meeting_->Leave(); }
  void Stop() override { meeting_->Stop(); }

 private:
  using Step = std::function<void(int64_t block)>;

  // Runs `blocks` blocks: post(k); once all ranks have posted block k,
  // reduce(k); once all have reduced it, take(k). Blocks overlap. `reduce` may
  // be null: take(k) then follows post(k) on all ranks. Returns an error on all
  // ranks, before anything is reduced or taken, unless `call` is the same on
  // all.
  absl::Status Run(const CollectiveCall& call, int64_t blocks, const Step& post,
                   const Step& reduce, const Step& take);
  // Describes this rank's next collective.
  CollectiveCall Next(const char* operation, int64_t size, c10::ScalarType type,
                      int root = -1);
  absl::Status AllReduceSmall(char* data, int64_t size, c10::ScalarType type);

  // `rank`'s slot for block `k` of the current collective.
  char* slot(int rank, int64_t k) const {
    return meeting_->segment()->slot(rank, base_ + k);
  }
  // Bytes of a slot per rank, in whole cache lines.
  int64_t PieceBytes() const { return kShmSlotBytes / size() / 64 * 64; }

  const std::unique_ptr<ShmMeeting> meeting_;
  // Blocks of all earlier collectives, and their number.
  uint64_t base_ = 0;
  int64_t sequence_ = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_SHM_SHM_COLLECTIVES_H_
