// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/single_group.h"

#include <glog/logging.h>

#include <memory>
#include <string>

namespace capstan {
namespace {

class NoWork final : public Work {
 public:
  void Wait() override {}
};

class SingleGroup : public ProcessGroup {
 public:
  explicit SingleGroup(at::Device device) : device_(device) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  at::Device device() const override { return device_; }
  std::string backend() const override { return "none"; }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    return NothingToWaitFor();
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    return Copy(output, input);
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    return Copy(output, input);
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override {
    CHECK_EQ(root, 0);
    return NothingToWaitFor();
  }
  std::unique_ptr<Work> AllToAll(const at::Tensor& output,
                                 const at::Tensor& input) override {
    return Copy(output, input);
  }
  std::unique_ptr<Work> SendRecv(const at::Tensor& output, int from,
                                 const at::Tensor& input, int to) override {
    CHECK_EQ(from, to);
    return to < 0 ? NothingToWaitFor() : Copy(output, input);
  }
  void AllReduceHost(absl::Span<double> values) override {}
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override {
    CHECK_GE(color, 0);
    return CreateSingleGroup(device_);
  }
  CommunicationStats stats() const override { return {}; }

 private:
  static std::unique_ptr<Work> Copy(const at::Tensor& output,
                                    const at::Tensor& input) {
    CHECK_EQ(output.numel(), input.numel());
    if (output.data_ptr() != input.data_ptr()) {
      output.view({-1}).copy_(input.view({-1}));
    }
    return NothingToWaitFor();
  }

  const at::Device device_;
};

}  // namespace

std::unique_ptr<Work> NothingToWaitFor() { return std::make_unique<NoWork>(); }

std::unique_ptr<ProcessGroup> CreateSingleGroup(at::Device device) {
  return std::make_unique<SingleGroup>(device);
}

}  // namespace capstan
