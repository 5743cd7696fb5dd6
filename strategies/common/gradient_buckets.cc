// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/gradient_buckets.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace capstan {

// Fires after autograd has written a parameter's .grad.
class GradientBuckets::Hook : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(GradientBuckets* owner, Slot* slot) : owner_(owner), slot_(slot) {}
  void operator()(const at::Tensor&) override { owner_->Collect(*slot_); }

 private:
  GradientBuckets* const owner_;
  Slot* const slot_;
};

GradientBuckets::GradientBuckets(const FlatLayout& layout,
                                 std::vector<Bucket> buckets,
                                 const std::vector<at::Tensor>& parameters,
                                 at::Tensor flat, OnReady on_ready)
    : buckets_(std::move(buckets)),
      flat_(std::move(flat)),
      on_ready_(std::move(on_ready)),
      pending_(buckets_.size()) {
  std::vector<int> bucket_of(parameters.size(), 0);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (int index : buckets_[b].parameters) bucket_of[index] = b;
  }
  for (const ParameterRange& range : layout.ranges) {
    auto slot = std::make_unique<Slot>();
    slot->parameter = parameters[range.parameter];
    slot->view = flat_.narrow(0, range.offset, range.length)
                     .view(slot->parameter.sizes());
    slot->bucket = bucket_of[range.parameter];
    grad_is_view_ = slot->parameter.scalar_type() == flat_.scalar_type();
    torch::autograd::impl::set_post_acc_grad_hooks(
        slot->parameter, std::make_unique<Hook>(this, slot.get()));
    slots_.push_back(std::move(slot));
  }
}

GradientBuckets::~GradientBuckets() {
  for (const auto& slot : slots_) {
    torch::autograd::impl::set_post_acc_grad_hooks(slot->parameter, nullptr);
  }
}

at::Tensor GradientBuckets::BucketView(int bucket) const {
  return flat_.narrow(0, buckets_[bucket].begin,
                      buckets_[bucket].end - buckets_[bucket].begin);
}

void GradientBuckets::Begin(bool first, bool last) {
  last_ = last;
  if (first) {
    for (const auto& slot : slots_) {
      slot->parameter.mutable_grad().reset();
      slot->written = false;
    }
    next_bucket_ = 0;
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    pending_[b] = static_cast<int>(buckets_[b].parameters.size());
  }
}

void GradientBuckets::Collect(Slot& slot) {
  at::NoGradGuard no_grad;
  at::Tensor& grad = slot.parameter.mutable_grad();
  if (grad.data_ptr() != slot.view.data_ptr()) {
    if (slot.written) {
      slot.view.add_(grad);
    } else {
      slot.view.copy_(grad);
    }
    if (grad_is_view_) {
      grad = slot.view;
    } else {
      grad.reset();
    }
  }
  slot.written = true;
  if (last_) Report(slot.bucket);
}

void GradientBuckets::Report(int bucket) {
  --pending_[bucket];
  while (next_bucket_ < static_cast<int>(buckets_.size()) &&
         pending_[next_bucket_] == 0) {
    on_ready_(next_bucket_++);
  }
}

void GradientBuckets::Finish() {
  at::NoGradGuard no_grad;
  for (const auto& slot : slots_) {
    if (slot->written) continue;
    slot->view.zero_();
    slot->written = true;
  }
  while (next_bucket_ < static_cast<int>(buckets_.size())) {
    on_ready_(next_bucket_++);
  }
}

}  // namespace capstan
