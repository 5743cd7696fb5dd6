// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "plugins/sdk/process_group.h"
#include "trainer/process_group/communication_meter.h"
#include "trainer/process_group/shm/shm_collectives.h"
#include "trainer/process_group/shm/shm_meeting.h"
#include "trainer/process_group/shm/shm_queue.h"

namespace capstan {

// A process group of CPU ranks on one host, over memory that they share.
// Collectives run in a thread of the group's, one after the other.
class ShmGroup final : public ProcessGroup {
 public:
  ShmGroup(std::unique_ptr<ShmMeeting> meeting,
           std::shared_ptr<CommunicationMeter> meter);
  // Ends what is under way and does not wait for other ranks.
  ~ShmGroup() override;

  int rank() const override { return meeting_->rank(); }
  int size() const override { return meeting_->size(); }
  at::Device device() const override { return at::kCPU; }
  std::string backend() const override { return "shm"; }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override;
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override;
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override;
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override;
  void AllReduceHost(absl::Span<double> values) override;
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override;
  CommunicationStats stats() const override { return meter_->stats(); }

  // Returns when all ranks have called it. UNAVAILABLE when one never will.
  absl::Status Barrier();

 private:
  // `run`, which is `collective`, with its cost counted and its errors told.
  ShmQueue::Task Prepare(const char* collective, int64_t bytes_sent,
                         ShmQueue::Task run);
  // Leaves it to the group's thread. `run` keeps the tensors alive.
  std::unique_ptr<Work> Begin(const char* collective, int64_t bytes_sent,
                              ShmQueue::Task run);
  // Does it at once, in this thread if it can.
  absl::Status RunNow(const char* collective, int64_t bytes_sent,
                      ShmQueue::Task run);
  // A short text of each rank, by rank.
  absl::StatusOr<std::vector<std::string>> ExchangeTexts(
      const std::string& mine);
  // Bytes that a rank of a ring sends to pass on all others' parts of `bytes`.
  int64_t RingBytes(int64_t bytes) const {
    return bytes * (size() - 1) / size();
  }

  const std::unique_ptr<ShmMeeting> meeting_;
  ShmCollectives collectives_{meeting_.get()};
  const std::shared_ptr<CommunicationMeter> meter_;
  const std::shared_ptr<ShmQueue> queue_;
  std::thread worker_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_
