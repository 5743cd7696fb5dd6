// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/gradient_buckets.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "plugins/sdk/memory.h"

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

GradientBuckets::GradientBuckets(const std::vector<ParameterSpec>& specs,
                                 const FlatLayout& layout,
                                 std::vector<Bucket> buckets,
                                 const std::vector<at::Tensor>& parameters,
                                 Options options)
    : buckets_(std::move(buckets)),
      options_(std::move(options)),
      states_(buckets_.size()) {
  std::vector<int> bucket_of(parameters.size(), 0);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (int index : buckets_[b].parameters) {
      bucket_of[index] = static_cast<int>(b);
    }
  }
  for (const ParameterRange& range : layout.ranges) {
    auto slot = std::make_unique<Slot>();
    slot->parameter = parameters[range.parameter];
    slot->bucket = bucket_of[range.parameter];
    slot->offset = range.offset - buckets_[slot->bucket].begin;
    slot->length = range.length;
    slot->tied = !specs[range.parameter].other_units.empty();
    torch::autograd::impl::set_post_acc_grad_hooks(
        slot->parameter, std::make_unique<Hook>(this, slot.get()));
    states_[slot->bucket].slots.push_back(slot.get());
    slots_.push_back(std::move(slot));
  }
}

GradientBuckets::~GradientBuckets() {
  for (const auto& slot : slots_) {
    torch::autograd::impl::set_post_acc_grad_hooks(slot->parameter, nullptr);
    slot->parameter.mutable_grad().reset();
  }
}

void GradientBuckets::Begin(bool first, bool last) {
  last_ = last;
  if (first) {
    for (const auto& slot : slots_) {
      slot->parameter.mutable_grad().reset();
      slot->view.reset();
      slot->written = false;
    }
    next_bucket_ = 0;
  }
  for (BucketState& state : states_) {
    if (first) state.sums.reset();
    state.pending = static_cast<int>(state.slots.size());
    state.taken = false;
  }
}

void GradientBuckets::Open(int bucket) {
  BucketState& state = states_[bucket];
  const int64_t numel = buckets_[bucket].numel();
  if (options_.flat.defined()) {
    state.sums = options_.flat.narrow(0, buckets_[bucket].begin, numel);
  } else {
    const MemoryScope scope(MemoryCategory::kBuckets);
    const at::Tensor& like = state.slots[0]->parameter;
    state.sums = at::empty(
        {numel}, like.options().dtype(options_.dtype).requires_grad(false));
  }
  int64_t filled = 0;
  for (Slot* slot : state.slots) {
    slot->view = state.sums.narrow(0, slot->offset, slot->length)
                     .view(slot->parameter.sizes());
    // Padding is summed and squared with the rest.
    if (slot->offset > filled) {
      state.sums.narrow(0, filled, slot->offset - filled).zero_();
    }
    filled = slot->offset + slot->length;
  }
  if (numel > filled) state.sums.narrow(0, filled, numel - filled).zero_();
}

bool GradientBuckets::Adopt(Slot& slot) {
  const at::Tensor& grad = slot.parameter.mutable_grad();
  if (options_.flat.defined() || !grad.is_contiguous() ||
      grad.scalar_type() != options_.dtype ||
      grad.numel() != buckets_[slot.bucket].numel()) {
    return false;
  }
  states_[slot.bucket].sums = grad.view({-1});
  slot.view = grad;
  return true;
}

void GradientBuckets::Collect(Slot& slot) {
  at::NoGradGuard no_grad;
  BucketState& state = states_[slot.bucket];
  TORCH_CHECK(!state.taken,
              "a gradient came after the backward of its unit was over: a "
              "model's forward must do all its work inside UnitRunner::Run");
  at::Tensor& grad = slot.parameter.mutable_grad();
  if (!state.sums.defined() && !Adopt(slot)) Open(slot.bucket);
  if (grad.data_ptr() != slot.view.data_ptr()) {
    if (slot.written) {
      slot.view.add_(grad);
    } else {
      slot.view.copy_(grad);
    }
    if (grad.scalar_type() == options_.dtype) {
      grad = slot.view;
    } else {
      grad.reset();
    }
  }
  slot.written = true;
  if (last_ && !slot.tied) Report(slot.bucket);
}

void GradientBuckets::Report(int bucket) {
  --states_[bucket].pending;
  if (!options_.on_ready) return;
  while (next_bucket_ < static_cast<int>(buckets_.size()) &&
         states_[next_bucket_].pending == 0) {
    options_.on_ready(next_bucket_);
    ++next_bucket_;
  }
}

at::Tensor GradientBuckets::Take(int bucket) {
  at::NoGradGuard no_grad;
  BucketState& state = states_[bucket];
  if (!state.sums.defined()) Open(bucket);
  for (Slot* slot : state.slots) {
    if (!slot->written) slot->view.zero_();
    slot->written = true;
  }
  at::Tensor sums = state.sums;
  state.taken = true;
  if (options_.flat.defined()) return sums;
  for (Slot* slot : state.slots) {
    slot->parameter.mutable_grad().reset();
    slot->view.reset();
    slot->written = false;
  }
  state.sums.reset();
  return sums;
}

void GradientBuckets::Finish() {
  while (next_bucket_ < static_cast<int>(buckets_.size())) {
    // Counted when it is done: one that failed (no memory) is called for again.
    if (options_.on_ready) options_.on_ready(next_bucket_);
    ++next_bucket_;
  }
}

std::vector<int64_t> LargestGradients(const Model& model,
                                      at::ScalarType compute) {
  std::vector<int64_t> largest(model.units().size(), 0);
  for (const ParameterSpec& spec : model.parameters()) {
    if (!spec.trainable) continue;
    largest[spec.unit] = std::max(
        largest[spec.unit],
        spec.numel() * static_cast<int64_t>(c10::elementSize(compute)));
  }
  return largest;
}

}  // namespace capstan
