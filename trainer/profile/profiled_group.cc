// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/profiled_group.h"

#include <utility>

#include "base/profile.h"
#include "base/status.h"
#include "trainer/profile/step_profile.h"

namespace capstan {
namespace {

class ProfiledWork : public Work {
 public:
  explicit ProfiledWork(std::unique_ptr<Work> work) : work_(std::move(work)) {}

  void Wait() override {
    const ProfileScope scope(kExposedPhase);
    work_->Wait();
  }

 private:
  const std::unique_ptr<Work> work_;
};

class ProfiledGroup : public ProcessGroup {
 public:
  explicit ProfiledGroup(std::unique_ptr<ProcessGroup> group)
      : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  std::string backend() const override { return group_->backend(); }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    return Profiled(group_->AllReduce(tensor));
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    return Profiled(group_->ReduceScatter(output, input));
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    return Profiled(group_->AllGather(output, input));
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override {
    return Profiled(group_->Broadcast(tensor, root));
  }

  void AllReduceHost(absl::Span<double> values) override {
    const ProfileScope scope(kExposedPhase);
    group_->AllReduceHost(values);
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override {
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> part,
                             group_->Split(color));
    return ProfileWaits(std::move(part));
  }

  CommunicationStats stats() const override { return group_->stats(); }

 private:
  static std::unique_ptr<Work> Profiled(std::unique_ptr<Work> work) {
    return std::make_unique<ProfiledWork>(std::move(work));
  }

  const std::unique_ptr<ProcessGroup> group_;
};

}  // namespace

std::unique_ptr<ProcessGroup> ProfileWaits(
    std::unique_ptr<ProcessGroup> group) {
  return std::make_unique<ProfiledGroup>(std::move(group));
}

}  // namespace capstan
