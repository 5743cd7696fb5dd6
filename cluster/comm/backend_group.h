// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_BACKEND_GROUP_H_
#define CAPSTAN_CLUSTER_COMM_BACKEND_GROUP_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "cluster/comm/communication_meter.h"
#include "cluster/comm/device_progress.h"
#include "cluster/comm/device_times.h"
#include "cluster/watch/collective_log.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// A process group on a c10d backend: Gloo or NCCL.
class BackendGroup : public ProcessGroup {
 public:
  // Joins rank `rank` of `size`, using keys under `prefix` in the run's store.
  // Blocks until all have joined; throws.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(
      const std::string& prefix, int rank, int size)>;

  // Throws what `connect` throws. `name` is the backend's and the key prefix.
  // On a GPU `host` is the group of the same ranks on the CPU, which sums
  // numbers in host memory without waiting for the device (null for a rank on
  // paper, which has no peers), and `times` measures what the host doesn't see.
  BackendGroup(Connect connect, std::string name, int rank, int size,
               at::Device device = at::kCPU,
               std::unique_ptr<ProcessGroup> host = nullptr,
               std::shared_ptr<DeviceTimes> times = nullptr);
  // Leaks the backend if destroying it could block: with pending collectives
  // (after an error), and with NCCL always.
  ~BackendGroup() override;

  int rank() const override { return backend_->getRank(); }
  int size() const override { return backend_->getSize(); }
  at::Device device() const override { return device_; }
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
  // On a GPU also throws if a collective of this rank has failed on the device:
  // later ones may seem to have succeeded.
  void AllReduceHost(absl::Span<double> values) override;
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override;
  // Like Split, for the colors of all ranks, by rank.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> SplitBy(
      absl::Span<const int> colors);
  CommunicationStats stats() const override;

  // The group of the same ranks on the CPU; null on the CPU and on paper.
  ProcessGroup* host() const { return host_.get(); }

 private:
  struct OnDevice {
    c10::intrusive_ptr<c10d::Backend> backend;
    std::shared_ptr<GroupProgress> progress;  // null on paper
  };
  // Of all groups of the rank on its GPU.
  struct DeviceGroups {
    // For good (see the destructor).
    std::vector<OnDevice> groups;
    std::unique_ptr<ProgressThread> thread;  // null on paper
  };

  BackendGroup(Connect connect, std::string name, std::string prefix,
               at::Device device, int rank, int size, int named_rank,
               std::unique_ptr<ProcessGroup> host,
               std::shared_ptr<CommunicationMeter> meter,
               std::shared_ptr<DeviceTimes> times,
               std::shared_ptr<DeviceGroups> on_device);

  // Whether the collectives are on a device that somebody may ask about them.
  bool Follows() const { return host_ != nullptr; }
  void CheckDevice();
  // The group of `size` ranks of this group, of which this one is `rank`.
  std::unique_ptr<ProcessGroup> Part(const std::string& prefix, int rank,
                                     int size,
                                     std::unique_ptr<ProcessGroup> host);
  // The key prefix of this split's group, equal on all its ranks.
  std::string NextPrefix(int color);
  // Returns Split's error; called within a catch clause.
  absl::Status CouldNotSplit(int color) const;
  // Calls `start`, which begins `collective` on `tensors`, the whole one last;
  // Wait will call `finish`.
  template <typename Function>
  std::unique_ptr<Work> Begin(const char* collective,
                              std::vector<at::Tensor> tensors, Function start,
                              std::function<void()> finish = nullptr);
  // Bytes that each of `size()` ranks sends in a ring over `tensor`: (n - 1) /
  // n of its size.
  int64_t RingBytes(const at::Tensor& tensor) const;
  void CheckTensor(const at::Tensor& tensor) const;

  const Connect connect_;
  const std::string name_;
  const std::string prefix_;
  const at::Device device_;
  // This rank's number in the run, for messages.
  const int named_rank_;
  const std::unique_ptr<ProcessGroup> host_;
  const std::shared_ptr<CommunicationMeter> meter_;
  const std::shared_ptr<DeviceTimes> times_;  // of all groups of the rank
  const std::shared_ptr<DeviceGroups> on_device_;
  const CollectiveLog log_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<GroupProgress> progress_;  // null on the CPU and on paper
  int splits_ = 0;
  // Collectives started and not yet successfully waited for.
  const std::shared_ptr<std::atomic<int>> under_way_ =
      std::make_shared<std::atomic<int>>(0);
};

// Returns the group of the same ranks for tensors on the CPU; that is `group`
// itself on the CPU and on paper.
ProcessGroup& HostGroupOf(ProcessGroup& group);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_BACKEND_GROUP_H_
