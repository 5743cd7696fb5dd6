// SPDX-License-Identifier: Apache-2.0
//
// The step. Setting up and `plan` are in zero2_setup.cc.
#include "strategies/zero2/zero2.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/squared_sum.h"

namespace capstan {
namespace zero2 {

absl::Span<OptimizerShard> Zero2::OptimizerShards() {
  return absl::MakeSpan(shards_);
}

void Zero2::BeginMicroStep(int index, int count) {
  // What the micro-step before has left unused.
  if (index > 0 && !reduce_once_) gradient_buckets_->Finish();
  micro_step_ = index;
  micro_steps_ = count;
  gradient_buckets_->Begin(/*first=*/index == 0 || !reduce_once_,
                           /*last=*/index + 1 == count || !reduce_once_);
}

void Zero2::Reduce(int bucket) {
  const Slice& slice = slices_[slices_.size() - 1 - bucket];
  queue_->Start(gradient_buckets_->Take(bucket), slice.gradient,
                /*add=*/micro_step_ > 0 && !reduce_once_);
  if (!overlap_) queue_->Drain();
}

void Zero2::FinishBackward() {
  // Those of units that this step didn't run.
  WaitForGathers();
  gradient_buckets_->Finish();
  // After an error in one micro-step the other ranks go on to the last.
  while (!reduce_once_ && micro_step_ + 1 < micro_steps_) {
    BeginMicroStep(micro_step_ + 1, micro_steps_);
    gradient_buckets_->Finish();
  }
  queue_->Drain();
}

at::Tensor Zero2::GradientSquaredSum() {
  return SquaredSum(gradients_, 0, gradients_.numel());
}

void Zero2::PublishShard(int shard) {
  at::NoGradGuard no_grad;
  Slice& slice = slices_[shard];
  if (offload_) {
    const OptimizerShard& s = shards_[shard];
    slice.mine.copy_(s.working.defined() ? s.working : s.master);
  }
  if (context_.group->size() == 1) return;
  const int64_t numel = slice.whole.numel();
  for (Slice& earlier : slices_) {
    if (gathering_ == 0 || gathering_ + numel <= allgather_bucket_size_) break;
    WaitForGather(earlier);
  }
  slice.gather = context_.group->AllGather(slice.whole, slice.mine);
  gathering_ += numel;
  if (!overlap_) WaitForGather(slice);
}

// The gathers have been started one by one; forward waits for what it needs.
void Zero2::PublishParameters() {}

void Zero2::PreForward(int unit) {
  // Done long ago: the memory of the last micro-step's buckets is wanted now.
  if (unit + 1 == static_cast<int>(slices_of_unit_.size())) queue_->Drain();
  if (gathering_ == 0) return;
  for (int slice : slices_of_unit_[unit]) WaitForGather(slices_[slice]);
}

void Zero2::WaitForGather(Slice& slice) {
  if (slice.gather == nullptr) return;
  slice.gather->Wait();
  slice.gather.reset();
  gathering_ -= slice.whole.numel();
}

void Zero2::WaitForGathers() {
  for (Slice& slice : slices_) WaitForGather(slice);
}

std::vector<OwnedSlice> Zero2::OwnedSlices() const {
  std::vector<OwnedSlice> owned;
  for (size_t i = 0; i < shards_.size(); ++i) {
    owned.push_back({static_cast<int>(i), 0, shards_[i].master.numel()});
  }
  return owned;
}

absl::Status Zero2::ForEachFullParameter(
    const std::function<absl::Status(int, const at::Tensor&)>& fn) {
  at::NoGradGuard no_grad;
  WaitForGathers();
  const std::vector<ParameterSpec>& specs = context_.model->parameters();
  const int frozen = static_cast<int>(slices_.size());
  std::vector<ParameterPlace> places(specs.size());
  for (const ParameterRange& range : frozen_layout_.ranges) {
    places[range.parameter] = {frozen, range.offset};
  }
  for (const ParameterRange& range : layout_.ranges) {
    for (int i = 0; i < frozen; ++i) {
      const Bucket& bucket = buckets_[slices_[i].bucket];
      if (range.offset < bucket.begin || range.offset >= bucket.end) continue;
      places[range.parameter] = {i, range.offset - bucket.begin};
    }
  }
  ProcessGroup& group = *context_.group;
  return ForEachPlacedParameter(
      specs, places, group.rank(),
      [&](int buffer) {
        if (buffer == frozen) return frozen_;
        const at::Tensor& whole = slices_[buffer].whole;
        if (whole.scalar_type() == context_.precision.master) return whole;
        const at::Tensor master =
            shards_[buffer].master.to(context_.group->device());
        const at::Tensor all = at::empty({whole.numel()}, master.options());
        group.AllGather(all, master)->Wait();
        return all;
      },
      fn);
}

CAPSTAN_PLUGIN(Strategy, Zero2, ::capstan::zero2::Config,
               "ZeRO stage 2: gradients, masters and optimizer state sharded");

}  // namespace zero2
}  // namespace capstan
