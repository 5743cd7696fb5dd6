// SPDX-License-Identifier: Apache-2.0
//
// The step. Setting up is in fsdp_setup.cc, `plan` in fsdp_plan.cc.
#include "strategies/fsdp/fsdp.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/squared_sum.h"

namespace capstan {
namespace fsdp {

absl::Span<OptimizerShard> Fsdp::OptimizerShards() {
  return absl::MakeSpan(&shard_, 1);
}

void Fsdp::StartPass(Pass pass) {
  FinishPass();
  pass_ = pass;
  schedule_ =
      pass == Pass::kTraining ? &training_schedule_ : &forward_schedule_;
  position_ = -1;
  next_operation_ = 0;
}

void Fsdp::AdvanceTo(int position) {
  position_ = position;
  const std::vector<Operation>& operations = schedule_->operations;
  while (next_operation_ < operations.size() &&
         operations[next_operation_].position <= position) {
    // Counted when it is done: after an error (no memory) it is tried again, so
    // that this rank leaves out no collective.
    const Operation& operation = operations[next_operation_];
    switch (operation.kind) {
      case Operation::kGather:
        groups_[operation.group]->Gather();
        break;
      case Operation::kFree:
        // Parameters that stay through forward stay through all micro-steps.
        if (reshard_ || pass_ != Pass::kTraining || last_micro_step()) {
          groups_[operation.group]->Free();
        }
        break;
      case Operation::kReduce:
        if (!reduce_once_ || last_micro_step()) Reduce(operation.group);
        break;
    }
    ++next_operation_;
  }
}

void Fsdp::WaitForNeeds(int position) {
  for (int group : schedule_->needs[position]) groups_[group]->Wait();
}

void Fsdp::FinishPass() {
  if (pass_ == Pass::kNone) return;
  AdvanceTo(schedule_->end());
  pass_ = Pass::kNone;
}

void Fsdp::Reduce(int group) {
  const int64_t numel = groups_[group]->shard_numel();
  queue_->Start(buckets_->Take(bucket_of_group_[group]),
                shard_.gradient.narrow(0, offsets_[group], numel),
                /*add=*/micro_step_ > 0 && !reduce_once_);
}

void Fsdp::BeginMicroStep(int index, int count) {
  FinishPass();
  micro_step_ = index;
  micro_steps_ = count;
  buckets_->Begin(/*first=*/index == 0 || !reduce_once_,
                  /*last=*/index + 1 == count || !reduce_once_);
  StartPass(Pass::kTraining);
}

void Fsdp::PreForward(int unit) {
  if (pass_ != Pass::kTraining) {
    // A forward of its own; the next one begins where units go back.
    const bool next = unit <= position_;
    if (pass_ == Pass::kNone || next) StartPass(Pass::kForwardOnly);
  }
  if (schedule_->Forward(unit) > position_) {
    AdvanceTo(schedule_->Forward(unit));
  }
  WaitForNeeds(schedule_->Forward(unit));
  // Done long ago: the memory of the last micro-step's buckets is wanted now.
  if (unit + 1 == schedule_->units) queue_->Drain();
}

void Fsdp::PreBackward(int unit) {
  if (schedule_->Backward(unit) > position_) {
    AdvanceTo(schedule_->Backward(unit));
  }
  WaitForNeeds(schedule_->Backward(unit));
}

void Fsdp::FinishForward() {
  // Also when this rank has run none: the others have.
  if (pass_ == Pass::kNone) StartPass(Pass::kForwardOnly);
  FinishPass();
}

void Fsdp::FinishBackward() {
  FinishPass();
  // After an error in one micro-step the other ranks go on to the last.
  while (!last_micro_step()) {
    BeginMicroStep(micro_step_ + 1, micro_steps_);
    FinishPass();
  }
  queue_->Drain();
}

at::Tensor Fsdp::GradientSquaredSum() {
  // Replicas hold the same sums: each takes its share of the work.
  const int64_t numel = shard_.gradient.numel();
  const auto [begin, end] =
      replica_group_ == nullptr
          ? std::make_pair(int64_t{0}, numel)
          : RankSlice(numel, replica_group_->rank(), replica_group_->size());
  return SquaredSum(shard_.gradient, begin, end);
}

// Gathers read the shards that the optimizer has written.
void Fsdp::PublishParameters() {}

std::vector<OwnedSlice> Fsdp::OwnedSlices() const {
  const int64_t numel = shard_.master.numel();
  if (replica_group_ == nullptr) return {{0, 0, numel}};
  const auto [begin, end] =
      RankSlice(numel, replica_group_->rank(), replica_group_->size());
  return {{0, begin, end}};
}

absl::Status Fsdp::ForEachFullParameter(
    const std::function<absl::Status(int, const at::Tensor&)>& fn) {
  at::NoGradGuard no_grad;
  FinishPass();
  const std::vector<ParameterSpec>& specs = context_.model->parameters();
  std::vector<ParameterPlace> places(specs.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const ParameterRange& range : layouts_[g].ranges) {
      places[range.parameter] = {static_cast<int>(g), range.offset};
    }
  }
  return ForEachPlacedParameter(
      specs, places, context_.group->rank(),
      [&](int g) {
        const at::Tensor mine =
            offsets_[g] < 0 ? frozen_[g]
                            : shard_.master.narrow(0, offsets_[g],
                                                   groups_[g]->shard_numel());
        if (shard_group_->size() == 1) return mine;
        const at::Tensor on_device = mine.to(shard_group_->device());
        const at::Tensor all =
            at::empty({layouts_[g].numel}, on_device.options());
        shard_group_->AllGather(all, on_device)->Wait();
        return all;
      },
      fn);
}

CAPSTAN_PLUGIN(Strategy, Fsdp, ::capstan::fsdp::Config,
               "fully sharded: parameters gathered a unit at a time");

}  // namespace fsdp
}  // namespace capstan
