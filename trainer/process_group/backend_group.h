// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_BACKEND_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_BACKEND_GROUP_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "plugins/sdk/process_group.h"
#include "trainer/process_group/communication_meter.h"
#include "trainer/process_group/device_times.h"
#include "trainer/watch/collective_log.h"

namespace capstan {

// A process group on a c10d backend: Gloo or NCCL.
class BackendGroup : public ProcessGroup {
 public:
  // Joins rank `rank` of `size`, using keys under `prefix` in the run's store.
  // Blocks until all have joined; throws.
  using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(
      const std::string& prefix, int rank, int size)>;

  // Throws what `connect` throws. `name` is the backend's and the key prefix.
  // times: measures what the host doesn't see; null on the CPU.
  BackendGroup(Connect connect, std::string name, at::Device device, int rank,
               int size, std::shared_ptr<DeviceTimes> times = nullptr);
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
  void AllReduceHost(absl::Span<double> values) override;
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override;
  CommunicationStats stats() const override;

 private:
  BackendGroup(Connect connect, std::string name, std::string prefix,
               at::Device device, int rank, int size, int named_rank,
               std::shared_ptr<CommunicationMeter> meter,
               std::shared_ptr<DeviceTimes> times);

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
  const std::shared_ptr<CommunicationMeter> meter_;
  const std::shared_ptr<DeviceTimes> times_;  // of all groups of the rank
  const CollectiveLog log_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  int splits_ = 0;
  // Collectives started and not yet successfully waited for.
  const std::shared_ptr<std::atomic<int>> under_way_ =
      std::make_shared<std::atomic<int>>(0);
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_BACKEND_GROUP_H_
