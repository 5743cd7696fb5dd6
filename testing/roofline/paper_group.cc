// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/paper_group.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/comm/backend_group.h"
#include "cluster/comm/single_group.h"
#include "kernels/context/on_paper.h"
#include "testing/roofline/trace.h"
#include "trainer/profile/ranges.h"

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
  // `stride`: the distance of its ranks in the run.
  PaperGroup(std::unique_ptr<ProcessGroup> group, int stride)
      : group_(std::move(group)),
        stride_(stride),
        range_(absl::StrCat(kStrideRange, stride)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  at::Device device() const override { return group_->device(); }
  std::string backend() const override { return group_->backend(); }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    const Range range(range_);
    return group_->AllReduce(tensor);
  }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override {
    const Range range(range_);
    return group_->ReduceScatter(output, input);
  }
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    if (output.is_cpu()) {
      // AllGatherHost: the others have the same bytes.
      output.view({size(), -1}).copy_(input.view({1, -1}));
      return NothingToWaitFor();
    }
    const Range range(range_);
    return group_->AllGather(output, input);
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override {
    const Range range(range_);
    return group_->Broadcast(tensor, root);
  }
  std::unique_ptr<Work> AllToAll(const at::Tensor& output,
                                 const at::Tensor& input) override {
    const Range range(range_);
    return group_->AllToAll(output, input);
  }
  std::unique_ptr<Work> SendRecv(const at::Tensor& output, int from,
                                 const at::Tensor& input, int to) override {
    const Range range(range_);
    return group_->SendRecv(output, from, input, to);
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
    // Those of a mesh's axis are equally far from each other.
    const auto first = std::find(colors.begin(), colors.end(), color);
    const auto second = std::find(first + 1, colors.end(), color);
    const int64_t apart = second == colors.end() ? 1 : second - first;
    return std::make_unique<PaperGroup>(std::move(part),
                                        static_cast<int>(stride_ * apart));
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
  const int stride_;
  const std::string range_;  // around collectives of the device
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
  return std::make_unique<PaperGroup>(std::move(group), /*stride=*/1);
}

}  // namespace capstan
