// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_ASYNC_GROUP_H_
#define CAPSTAN_CLUSTER_COMM_ASYNC_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/comm/communication_meter.h"
#include "cluster/comm/phase_group.h"
#include "cluster/comm/sync_collectives.h"
#include "cluster/watch/collective_log.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

class AsyncQueue;

// A process group of CPU ranks made of synchronous collectives, which run in
// order on the group's own thread. Created, destroyed and used by one thread at
// a time. PhaseGroup's functions are for the whole group, not for its parts.
class AsyncGroup : public ProcessGroup, public PhaseGroup {
 public:
  // `name` is backend()'s; `parent` the group that it is split from, or null.
  AsyncGroup(std::unique_ptr<SyncCollectives> collectives, std::string name,
             std::shared_ptr<CommunicationMeter> meter,
             AsyncGroup* parent = nullptr);
  // Aborts pending collectives without waiting for other ranks.
  ~AsyncGroup() override;

  int rank() const override { return collectives_->rank(); }
  int size() const override { return collectives_->size(); }
  at::Device device() const override { return at::kCPU; }
  std::string backend() const override { return name_; }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override;
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override;
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override;
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Work> AllToAll(const at::Tensor& output,
                                 const at::Tensor& input) override;
  std::unique_ptr<Work> SendRecv(const at::Tensor& output, int from,
                                 const at::Tensor& input, int to) override;
  void AllReduceHost(absl::Span<double> values) override;
  CommunicationStats stats() const override { return meter_->stats(); }

  absl::StatusOr<int> EndPhase(const absl::Status& mine,
                               const std::string& what) override;
  void FailPhase(const std::string& why) override;
  bool PhaseFailed() const override;
  void StopCommunicating() override;

  // Completes the group's creation: blocks until all ranks have called it.
  // UNAVAILABLE if one has left.
  absl::Status Start();
  // Whether this is the whole group.
  bool is_root() const { return root_ == this; }

 protected:
  // For Split. All-gathers a text of less than kTextBytes.
  static constexpr int64_t kTextBytes = 64;
  absl::StatusOr<std::vector<std::string>> ExchangeTexts(
      const std::string& mine);
  // The ranks that pass the same color, ascending. Collective.
  absl::StatusOr<std::vector<int>> RanksOfColor(int color);
  // This rank's number in the run, or `rank`'s.
  int name_of(int rank) const { return collectives_->name(rank); }
  const std::shared_ptr<CommunicationMeter>& meter() const { return meter_; }

 private:
  using Task = std::function<absl::Status()>;

  ShmMeeting* meeting() const { return collectives_->meeting(); }
  // Like the above; `barrier` is its name in the ledger.
  absl::StatusOr<int> EndPhase(const char* barrier, const absl::Status& mine,
                               const std::string& what);
  // Called on all ranks after a failure: drops pending collectives in all
  // groups and resets them. Returns the rank that failed.
  absl::StatusOr<int> Recover();

  // Wraps `run`, the collective on `bytes`, with metering, its record in the
  // ledger, and error messages.
  Task Prepare(const char* collective, int64_t bytes, int64_t bytes_sent,
               Task run);
  // Queues it for the group's thread. `run` keeps the tensors alive.
  std::unique_ptr<Work> Begin(const char* collective, int64_t bytes,
                              int64_t bytes_sent, Task run);
  // Runs it at once, on this thread if possible.
  absl::Status RunNow(const char* collective, int64_t bytes, int64_t bytes_sent,
                      Task run);
  // Bytes that a rank sends in a ring over `bytes`.
  int64_t RingBytes(int64_t bytes) const {
    return bytes * (size() - 1) / size();
  }

  const std::unique_ptr<SyncCollectives> collectives_;
  const std::string name_;
  const std::shared_ptr<CommunicationMeter> meter_;
  const CollectiveLog log_{/*sees_ends=*/true};
  const std::shared_ptr<AsyncQueue> queue_;
  AsyncGroup* const root_;
  std::vector<AsyncGroup*> family_;  // of the root: itself, and its parts
  uint64_t phase_ = 1;               // of the root
  std::thread worker_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_ASYNC_GROUP_H_
