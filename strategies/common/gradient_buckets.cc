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

// Fires after autograd has written a parameter's .grad, or all its uses in a
// graph have returned no gradient.
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
      flat_(options_.flat),
      states_(buckets_.size()) {
  slot_of_parameter_.assign(parameters.size(), nullptr);
  const std::vector<int> bucket_of = BucketOfEach(buckets_, parameters.size());
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
    slot_of_parameter_[range.parameter] = slot.get();
    slots_.push_back(std::move(slot));
  }
  if (options_.model != nullptr) options_.model->BindGradients(this);
}

GradientBuckets::~GradientBuckets() {
  if (options_.model != nullptr) options_.model->BindGradients(nullptr);
  for (const auto& slot : slots_) {
    torch::autograd::impl::set_post_acc_grad_hooks(slot->parameter, nullptr);
    slot->parameter.mutable_grad().reset();
  }
}

void GradientBuckets::Begin(bool first, bool last) {
  last_ = last;
  held_ = false;
  for (const auto& slot : slots_) {
    // Left by a micro-step that threw.
    slot->parameter.mutable_grad().reset();
    slot->opened.reset();
    slot->opened_wide = false;
    if (first) {
      slot->view.reset();
      slot->written = false;
    }
  }
  if (first) next_bucket_ = 0;
  for (BucketState& state : states_) {
    if (first) state.sums.reset();
    state.pending = static_cast<int>(state.slots.size());
    state.taken = false;
  }
}

GradientBuckets::BucketState& GradientBuckets::StateOf(const Slot& slot) {
  BucketState& state = states_[slot.bucket];
  TORCH_CHECK(!state.taken,
              "a gradient came after the backward of its unit was over: a "
              "model's forward must do all its work inside UnitRunner::Run");
  return state;
}

bool GradientBuckets::FillsBucket(const Slot& slot) const {
  return slot.length == buckets_[slot.bucket].numel() &&
         slot.parameter.scalar_type() == options_.dtype;
}

void GradientBuckets::MakeSums(int bucket) {
  BucketState& state = states_[bucket];
  const int64_t numel = buckets_[bucket].numel();
  if (flat_.defined()) {
    state.sums = flat_.narrow(0, buckets_[bucket].begin, numel);
  } else {
    const Slot& first = *state.slots[0];
    // A bucket that adopts its only gradient counts like autograd's gradients.
    const MemoryScope scope(FillsBucket(first) ? CurrentMemoryCategory()
                                               : MemoryCategory::kBuckets);
    state.sums = at::empty(
        {numel},
        first.parameter.options().dtype(options_.dtype).requires_grad(false));
  }
  SetSums(bucket, state.sums);
  int64_t filled = 0;
  for (const Slot* slot : state.slots) {
    // Padding is summed and squared along with the rest.
    if (slot->offset > filled) {
      state.sums.narrow(0, filled, slot->offset - filled).zero_();
    }
    filled = slot->offset + slot->length;
  }
  if (numel > filled) state.sums.narrow(0, filled, numel - filled).zero_();
}

void GradientBuckets::SetSums(int bucket, const at::Tensor& sums) {
  BucketState& state = states_[bucket];
  state.sums = sums;
  for (Slot* slot : state.slots) {
    slot->view = sums.narrow(0, slot->offset, slot->length)
                     .view(slot->parameter.sizes());
  }
}

void GradientBuckets::Fix() {
  if (flat_.defined() || buckets_.empty()) return;
  int64_t numel = 0;
  for (const Bucket& bucket : buckets_) numel = std::max(numel, bucket.end);
  const MemoryScope scope(MemoryCategory::kBuckets);
  flat_ = at::empty({numel}, slots_[0]
                                 ->parameter.options()
                                 .dtype(options_.dtype)
                                 .requires_grad(false));
}

// A character for each slot.
std::string GradientBuckets::State() const {
  std::string state;
  for (const auto& slot : slots_) state.push_back(slot->written ? '1' : '0');
  return state;
}

void GradientBuckets::SetState(const std::string& state) {
  TORCH_CHECK(state.size() == slots_.size() && flat_.defined(),
              "the state is of other gradients");
  const at::NoGradGuard no_grad;
  for (BucketState& bucket : states_) bucket.sums.reset();
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    slot.parameter.mutable_grad().reset();
    slot.opened.reset();
    slot.opened_wide = false;
    slot.written = state[i] == '1';
    slot.view.reset();
  }
  for (size_t i = 0; i < slots_.size(); ++i) {
    const int b = slots_[i]->bucket;
    if (!slots_[i]->written || states_[b].sums.defined()) continue;
    SetSums(b, flat_.narrow(0, buckets_[b].begin, buckets_[b].numel()));
  }
}

bool GradientBuckets::Adopt(Slot& slot, const at::Tensor& gradient) {
  if (flat_.defined() || !FillsBucket(slot) || !gradient.is_contiguous()) {
    return false;
  }
  states_[slot.bucket].sums = gradient.view({-1});
  slot.view = gradient;
  return true;
}

GradientSink::Place GradientBuckets::Open(int parameter) {
  Slot* const slot = slot_of_parameter_[parameter];
  if (slot == nullptr || slot->opened.has_value() ||
      slot->parameter.scalar_type() != options_.dtype) {
    return {};
  }
  const at::NoGradGuard no_grad;
  if (!StateOf(*slot).sums.defined()) MakeSums(slot->bucket);
  Place place;
  // A separate tensor: autograd takes over only what has no other owner.
  place.gradient = slot->view.variable_data();
  place.add = slot->written;
  slot->opened.emplace(place.gradient.getIntrusivePtr());
  return place;
}

GradientSink::Place GradientBuckets::OpenWide(int parameter) {
  Slot* const slot = slot_of_parameter_[parameter];
  if (slot == nullptr || options_.dtype != at::kFloat ||
      !c10::isReducedFloatingType(slot->parameter.scalar_type())) {
    return {};
  }
  const at::NoGradGuard no_grad;
  if (!StateOf(*slot).sums.defined()) MakeSums(slot->bucket);
  const Place place = {slot->view, slot->written || slot->opened_wide};
  slot->opened_wide = true;
  return place;
}

void GradientBuckets::Put(Slot& slot, const at::Tensor& gradient) {
  const bool another =
      slot.opened.has_value() && slot.tied && !slot.opened->expired();
  if (another || slot.opened_wide ||
      (slot.written && !slot.opened.has_value())) {
    slot.view.add_(gradient);
  } else {
    slot.view.copy_(gradient);
  }
  if (!another) slot.opened.reset();
}

void GradientBuckets::Collect(Slot& slot) {
  const at::NoGradGuard no_grad;
  BucketState& state = StateOf(slot);
  // With a new gradient tensor, the next backward doesn't add to this one.
  const at::Tensor gradient = std::move(slot.parameter.mutable_grad());
  slot.parameter.mutable_grad().reset();
  if (!gradient.defined()) {  // OpenWide's callers have written it, if any
    if (slot.opened_wide) Arrived(slot);
    return;
  }
  if (!state.sums.defined() && !Adopt(slot, gradient)) MakeSums(slot.bucket);
  if (gradient.data_ptr() == slot.view.data_ptr()) {
    slot.opened.reset();
  } else {
    Put(slot, gradient);
  }
  Arrived(slot);
}

void GradientBuckets::Arrived(Slot& slot) {
  slot.opened_wide = false;
  slot.written = true;
  if (last_ && !held_ && !slot.tied) Report(slot.bucket);
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
  const at::NoGradGuard no_grad;
  BucketState& state = states_[bucket];
  if (!state.sums.defined()) MakeSums(bucket);
  for (Slot* slot : state.slots) {
    if (!slot->written) slot->view.zero_();
    slot->written = true;
  }
  at::Tensor sums = state.sums;
  state.taken = true;
  if (flat_.defined()) return sums;
  for (Slot* slot : state.slots) {
    slot->view.reset();
    slot->written = false;
  }
  state.sums.reset();
  return sums;
}

void GradientBuckets::Finish() {
  while (next_bucket_ < static_cast<int>(buckets_.size())) {
    // Incremented afterwards: a call that threw (no memory) is repeated.
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
