// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/paper_group.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "cluster/comm/backend_group.h"
#include "cluster/comm/single_group.h"
#include "kernels/context/on_paper.h"

namespace capstan {
namespace {

std::atomic<bool> on_paper{false};

// The colors noted since the last Split, by rank, of the thread that splits.
std::vector<int>& NotedSplit() {
  static thread_local auto* const colors = new std::vector<int>;
  return *colors;
}

class PaperGroup : public ProcessGroup {
 public:
  explicit PaperGroup(std::unique_ptr<ProcessGroup> group)
      : group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  std::string backend() const override { return group_->backend(); }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    return group_->AllReduce(tensor);
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    return group_->ReduceScatter(output, input);
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    if (!output.is_cpu()) return group_->AllGather(output, input);
    // AllGatherHost: the others have the same bytes.
    output.view({size(), -1}).copy_(input.view({1, -1}));
    return NothingToWaitFor();
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override {
    return group_->Broadcast(tensor, root);
  }

  void AllReduceHost(absl::Span<double> values) override {
    // It costs the device nothing (BackendGroup).
    const std::vector<double> sum = Sum(values);
    std::copy(sum.begin(), sum.end(), values.begin());
  }

  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override {
    const std::vector<int> colors = std::exchange(NotedSplit(), {});
    auto* const backend = dynamic_cast<BackendGroup*>(group_.get());
    if (colors.size() != static_cast<size_t>(size()) ||
        colors[rank()] != color || backend == nullptr) {
      // How many ranks say the same isn't known.
      return absl::UnimplementedError(
          "which ranks are in a group isn't known on paper: call NoteSplit "
          "(kernels/context/on_paper.h) before Split, or use a strategy over "
          "all ranks");
    }
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> part,
                             backend->SplitBy(colors));
    return CreatePaperGroup(std::move(part));
  }
  CommunicationStats stats() const override { return group_->stats(); }

 private:
  // With a slot for each rank, of which this one's has numbers (FromAllRanks):
  // the same in each. Else a sum of equal terms.
  std::vector<double> Sum(absl::Span<const double> values) const {
    std::vector<double> sum(values.begin(), values.end());
    const size_t slots = size(), slot = sum.size() / slots;
    const size_t own = slot * rank();
    bool others_empty = sum.size() % slots == 0;
    for (size_t i = 0; i < sum.size(); ++i) {
      const bool mine = i >= own && i < own + slot;
      if (!mine && sum[i] != 0.0) others_empty = false;
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = others_empty ? values[own + i % slot]
                            : values[i] * static_cast<double>(slots);
    }
    return sum;
  }

  const std::unique_ptr<ProcessGroup> group_;
};

}  // namespace

void SetOnPaper() { on_paper = true; }

// These take the place of the core's.
bool OnPaper() { return on_paper; }

void NoteSplit(int ranks, const std::function<int(int rank)>& color) {
  std::vector<int>& colors = NotedSplit();
  colors.clear();
  for (int rank = 0; rank < ranks; ++rank) colors.push_back(color(rank));
}

std::unique_ptr<ProcessGroup> CreatePaperGroup(
    std::unique_ptr<ProcessGroup> group) {
  return std::make_unique<PaperGroup>(std::move(group));
}

}  // namespace capstan
