// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/collective_label.h"
#include "base/side_stream.h"
#include "base/status.h"
#include "kernels/context/on_paper.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_layout.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/gradient_buckets.h"
#include "strategies/common/grid_sums.h"
#include "strategies/common/reduce_queue.h"
#include "strategies/fsdp/fsdp.pb.h"
#include "strategies/fsdp/schedule.h"

namespace capstan::fsdp {

namespace {

// The whole parameters of a group, which exist between Gather and Free.
//
// The tensors bound to the model are views of one storage. Free releases the
// storage's memory; Gather allocates it again and all-gathers the ranks' shards
// into it. Autograd's saved tensors share the storage, so backward finds the
// values again; version counters don't change, since the values don't.
class ParameterGroup {
 public:
  // `shard`: this rank's slice of the layout, which has `numel` elements, in
  // the compute dtype, on the run's device or in host memory; Gather reads it,
  // and it outlives this, as do `shards` and `copies`, where it comes from host
  // memory. Memory is initially allocated, but uninitialised: making views
  // requires it.
  // `name` is for reports.
  ParameterGroup(int64_t numel, const at::Tensor& shard, ProcessGroup* shards,
                 SideStream* copies, std::string name)
      : name_(std::move(name)),
        shard_(shard),
        shards_(shards),
        copies_(copies) {
    const MemoryScope scope(MemoryCategory::kBuckets);
    whole_ = at::empty(
        {numel}, shard.options().device(shards->device()).pinned_memory(false));
    bytes_ = static_cast<int64_t>(whole_.nbytes());
    gathered_ = true;
  }

  const std::string& name() const { return name_; }
  int64_t shard_numel() const { return shard_.numel(); }
  // [numel], over the storage.
  const at::Tensor& whole() const { return whole_; }

  // Starts to gather the parameters; a no-op if they are whole.
  void Gather() {
    if (gathered_) return;
    at::NoGradGuard no_grad;
    c10::StorageImpl* storage = whole_.storage().unsafeGetStorageImpl();
    {
      const MemoryScope scope(MemoryCategory::kBuckets);
      storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes_));
    }
    storage->set_nbytes(bytes_);
    if (shard_.device().type() != whole_.device().type()) {
      if (shards_->size() > 1) {
        on_device_ = at::empty(shard_.sizes(), whole_.options());
      }
      copies_->Run([this] { GatherFromHost(); });
    } else if (shards_->size() == 1) {
      whole_.copy_(shard_);
    } else {
      const CollectiveLabel label(name_);
      // .data_ptr's owner stays alive, so the storage isn't freed before Wait.
      work_ = shards_->AllGather(whole_.detach(), shard_);
    }
    // Not if that has thrown: a forward would take what isn't there.
    gathered_ = true;
  }

  // Blocks until the parameters are whole. Requires a preceding Gather.
  void Wait() {
    TORCH_CHECK(gathered_,
                "fsdp: a unit's forward ran again in the same micro-step; fsdp "
                "needs models that run each unit once: use zero2 or ddp");
    if (copied_) copies_->Join();
    copied_ = false;
    if (work_ == nullptr) return;
    work_->Wait();
    work_.reset();
    on_device_.reset();
  }

  void Free() {
    if (!gathered_) return;
    Wait();
    c10::StorageImpl* storage = whole_.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, whole_.device()));
    storage->set_nbytes(0);
    gathered_ = false;
  }

 private:
  // On the stream of copies, for which alone the all-gather then waits.
  void GatherFromHost() {
    if (shards_->size() == 1) {
      whole_.copy_(shard_, /*non_blocking=*/true);
      copied_ = true;
      return;
    }
    on_device_.copy_(shard_, /*non_blocking=*/true);
    const CollectiveLabel label(name_);
    work_ = shards_->AllGather(whole_.detach(), on_device_);
  }

  const std::string name_;
  const at::Tensor shard_;
  ProcessGroup* const shards_;
  SideStream* const copies_;
  at::Tensor whole_;
  int64_t bytes_ = 0;
  bool gathered_ = false;
  at::Tensor on_device_;  // an offloaded shard being copied
  bool copied_ = false;   // whole_ is being copied from host memory
  std::unique_ptr<Work> work_;
};

// Fully sharded data parallelism (Zhao et al., "PyTorch FSDP: Experiences on
// Scaling Fully Sharded Data Parallel", VLDB 2023): each rank keeps its shard
// of parameters, gradients, masters and optimizer state. A unit's parameters
// are gathered ahead of its forward and backward and freed afterwards; its
// gradients are reduce-scattered after its backward.
//
// The schedule is computed once (schedule.h); the callbacks advance the
// position in the pass and issue everything due.
class Fsdp final : public Strategy {
 public:
  static absl::StatusOr<std::unique_ptr<Fsdp>> Create(const Config& config) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(config.prefetch() >= 0, "prefetch",
                                       "0 or more units", config.prefetch()));
    CAPSTAN_RETURN_IF_ERROR(CheckField(
        config.shard_group_size() >= 0, "shard_group_size",
        "a number of ranks, or 0 for all", config.shard_group_size()));
    return std::unique_ptr<Fsdp>(new Fsdp(config));
  }

  absl::Status Check(const StrategyRequest& request) const override {
    if (request.world_size % shards(request.world_size) != 0) {
      return FieldError(
          "shard_group_size",
          absl::StrCat("is ", config_.shard_group_size(), ", which doesn't ",
                       "divide this run's ", request.world_size,
                       " ranks into equal groups"));
    }
    return CheckPrecision(request.precision);
  }

  StrategyPlan Plan(const StrategyRequest& request) const override {
    return PlanRun(request, shards(request.world_size), TrainingPass(),
                   {reduce_once_, config_.cpu_offload()});
  }

  absl::Status Setup(const StrategyContext& context) override {
    at::NoGradGuard no_grad;
    context_ = context;
    each_apart_ = !reduce_once_ || context.deterministic;
    copies_ = std::make_unique<SideStream>(context.group->device());
    to_host_ = std::make_unique<SideStream>(context.group->device());
    CAPSTAN_RETURN_IF_ERROR(SplitRanks());
    const std::vector<ParameterSpec> specs =
        StoredSpecs(*context.model, context.precision.compute);
    rules_ = RulesOf(*context.model, context.optimizer);
    specs_ = MakeGroups(*context.model, rules_);
    layouts_ = LayOutGroups(specs, specs_, rules_, shard_group_->size());
    CAPSTAN_RETURN_IF_ERROR(MakeShards());
    CAPSTAN_RETURN_IF_ERROR(MakeFrozenShards());
    MakeGroupsAndBuckets();
    return absl::OkStatus();
  }

  absl::Span<OptimizerShard> OptimizerShards() override {
    return absl::MakeSpan(&shard_, 1);
  }

  void BeginMicroStep(int index, int count) override {
    FinishPass();
    micro_step_ = index;
    micro_steps_ = count;
    buckets_->Begin(/*first=*/index == 0 || each_apart_,
                    /*last=*/index + 1 == count || each_apart_);
    StartPass(Pass::kTraining);
  }

  bool wants_unit_callbacks() const override { return true; }
  bool collective_forward() const override { return true; }

  void PreForward(int unit) override {
    if (pass_ != Pass::kTraining) {
      // A new forward begins where unit numbers go back.
      const bool next = unit <= position_;
      if (pass_ == Pass::kNone || next) StartPass(Pass::kForwardOnly);
    }
    if (schedule_->Forward(unit) > position_) {
      AdvanceTo(schedule_->Forward(unit));
    }
    WaitForNeeds(schedule_->Forward(unit));
    // Reductions finished long ago; free the last micro-step's buckets now.
    if (unit + 1 == schedule_->units) queue_->Drain();
  }

  void PreBackward(int unit) override {
    if (schedule_->Backward(unit) > position_) {
      AdvanceTo(schedule_->Backward(unit));
    }
    WaitForNeeds(schedule_->Backward(unit));
  }

  void FinishForward() override {
    // Even if this rank has run no forward: the others have.
    if (pass_ == Pass::kNone) StartPass(Pass::kForwardOnly);
    FinishPass();
  }

  void FinishBackward() override {
    FinishPass();
    // After an error in one micro-step the other ranks go on to the last.
    while (!last_micro_step()) {
      BeginMicroStep(micro_step_ + 1, micro_steps_);
      FinishPass();
    }
    queue_->Drain();
    const at::NoGradGuard no_grad;
    if (grid_sums_.defined()) shard_.gradient.copy_(grid_sums_);
    // The update writes the shards that gathers have copied.
    if (config_.cpu_offload()) copies_->Wait();
  }

  at::Tensor GradientSquaredSum() override {
    const auto [begin, end] = Share();
    return SquaredSum(shard_.gradient, begin, end);
  }

  // Gathers read the shards, which have been written; what forwards have left
  // gathered is the former weights.
  void PublishParameters(PublishCause) override {
    for (const auto& group : groups_) group->Free();
  }

  std::vector<OwnedSlice> OwnedSlices() const override {
    const auto [begin, end] = Share();
    return {{0, begin, end}};
  }

  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override {
    at::NoGradGuard no_grad;
    FinishPass();
    const std::vector<ParameterSpec>& specs = context_.model->parameters();
    std::vector<ParameterPlace> places(specs.size());
    for (size_t g = 0; g < groups_.size(); ++g) {
      SetPlaces(layouts_[g], static_cast<int>(g), &places);
    }
    return ForEachPlacedParameter(
        *context_.model, places, context_.group->rank(),
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

 private:
  enum class Pass { kNone, kTraining, kForwardOnly };

  explicit Fsdp(const Config& config)
      : config_(config),
        reshard_(!config.has_reshard_after_forward() ||
                 config.reshard_after_forward()),
        prefetch_(config.has_prefetch() ? config.prefetch() : 1),
        reduce_once_(config.accumulation() == Config::REDUCE_ONCE) {}

  int shards(int world_size) const {
    return config_.shard_group_size() > 0 ? config_.shard_group_size()
                                          : world_size;
  }

  ScheduleOptions TrainingPass() const {
    return {/*backward=*/true, reshard_, prefetch_};
  }

  absl::Status SplitRanks() {
    shard_group_ = context_.group;
    const int world = context_.group->size();
    const int size = shards(world);
    if (size == world) return absl::OkStatus();
    Mesh mesh;
    mesh.data = world / size;
    mesh.shard = size;
    const auto split = [&](MeshAxis axis) {
      NoteSplit(world, [&](int rank) { return mesh.color(axis, rank); });
      return context_.group->Split(mesh.color(axis, context_.group->rank()));
    };
    CAPSTAN_ASSIGN_OR_RETURN(own_shard_group_, split(MeshAxis::kShard));
    CAPSTAN_ASSIGN_OR_RETURN(own_replica_group_, split(MeshAxis::kData));
    shard_group_ = own_shard_group_.get();
    replica_group_ = own_replica_group_.get();
    return absl::OkStatus();
  }

  absl::Status MakeShards() {
    const bool on_gpu = context_.group->device().is_cuda();
    const auto home =
        config_.cpu_offload()
            ? at::TensorOptions().device(at::kCPU).pinned_memory(on_gpu)
            : at::TensorOptions().device(context_.group->device());
    std::vector<ParameterRange> ranges;
    int64_t numel = 0;
    for (size_t g = 0; g < specs_.size(); ++g) {
      offsets_.push_back(specs_[g].trainable ? numel : -1);
      if (!specs_[g].trainable) continue;
      const auto [begin, end] = MySlice(layouts_[g]);
      for (ParameterRange range : CutRanges(layouts_[g], begin, end)) {
        range.offset += numel;
        ranges.push_back(range);
      }
      numel += end - begin;
    }
    if (context_.deterministic) {
      grid_sums_ = Zeros(MemoryCategory::kGradients, numel, home, at::kDouble);
    }
    return MakeShard(context_, std::move(ranges), numel, home,
                     /*on_all_ranks=*/false, &shard_);
  }

  absl::Status MakeFrozenShards() {
    frozen_.resize(specs_.size());
    for (size_t g = 0; g < specs_.size(); ++g) {
      if (specs_[g].trainable) continue;
      const auto [begin, end] = MySlice(layouts_[g]);
      frozen_[g] = Zeros(MemoryCategory::kParameters, end - begin,
                         shard_.master.options(), context_.precision.compute);
      CAPSTAN_RETURN_IF_ERROR(
          FillInitialValues(*context_.model, context_.seed,
                            CutRanges(layouts_[g], begin, end), frozen_[g]));
    }
    return absl::OkStatus();
  }

  void MakeGroupsAndBuckets() {
    const std::vector<ParameterSpec>& specs = context_.model->parameters();
    const at::Tensor& working =
        shard_.working.defined() ? shard_.working : shard_.master;
    parameters_.resize(specs.size());
    bucket_of_group_.assign(specs_.size(), -1);
    FlatLayout gradients;  // of all trainable groups, one bucket per group
    std::vector<Bucket> buckets;
    for (size_t g = 0; g < specs_.size(); ++g) {
      const auto [begin, end] = MySlice(layouts_[g]);
      const at::Tensor shard = specs_[g].trainable
                                   ? working.narrow(0, offsets_[g], end - begin)
                                   : frozen_[g];
      groups_.push_back(std::make_unique<ParameterGroup>(
          layouts_[g].numel, shard, shard_group_, copies_.get(),
          context_.model->units()[specs_[g].unit]));
      MakeParameters(*context_.model, layouts_[g], groups_[g]->whole(),
                     &parameters_);
      groups_[g]->Free();
      if (!specs_[g].trainable) continue;
      bucket_of_group_[g] = static_cast<int>(buckets.size());
      const int64_t offset = gradients.numel;
      for (ParameterRange range : layouts_[g].ranges) {
        range.offset += offset;
        gradients.ranges.push_back(range);
      }
      gradients.numel += layouts_[g].numel;
      buckets.push_back({offset, gradients.numel, specs_[g].parameters});
    }
    context_.model->Bind(parameters_);
    const int units = static_cast<int>(context_.model->units().size());
    training_schedule_ = MakeSchedule(specs_, units, TrainingPass());
    forward_schedule_ =
        MakeSchedule(specs_, units, {/*backward=*/false, reshard_, prefetch_});
    queue_ = std::make_unique<ReduceQueue>(shard_group_, replica_group_,
                                           to_host_.get());
    GradientBuckets::Options options;
    options.dtype = context_.precision.reduce;
    options.model = context_.model;
    buckets_ = std::make_unique<GradientBuckets>(
        specs, gradients, std::move(buckets), parameters_, std::move(options));
  }

  // Replicas hold the same shard: this rank's share of the work on it.
  std::pair<int64_t, int64_t> Share() const {
    const int64_t numel = shard_.master.numel();
    if (replica_group_ == nullptr) return {0, numel};
    return RankSlice(numel, replica_group_->rank(), replica_group_->size(),
                     rules_.multiple);
  }

  // This rank's slice of a group's layout.
  std::pair<int64_t, int64_t> MySlice(const FlatLayout& layout) const {
    const int64_t length = layout.numel / shard_group_->size();
    return {shard_group_->rank() * length, (shard_group_->rank() + 1) * length};
  }

  void StartPass(Pass pass) {
    FinishPass();
    pass_ = pass;
    schedule_ =
        pass == Pass::kTraining ? &training_schedule_ : &forward_schedule_;
    position_ = -1;
    next_operation_ = 0;
  }

  void AdvanceTo(int position) {
    position_ = position;
    const std::vector<Operation>& operations = schedule_->operations;
    while (next_operation_ < operations.size() &&
           operations[next_operation_].position <= position) {
      // Incremented afterwards: after an error (no memory) the operation is
      // repeated, so that this rank skips no collective.
      const Operation& operation = operations[next_operation_];
      switch (operation.kind) {
        case Operation::kGather:
          groups_[operation.group]->Gather();
          break;
        case Operation::kFree:
          // Parameters kept through forward are kept through all micro-steps,
          // and from one forward without backward to the next.
          if (reshard_ || (pass_ == Pass::kTraining && last_micro_step())) {
            groups_[operation.group]->Free();
          }
          break;
        case Operation::kReserve:
          if (!reduce_once_ || last_micro_step()) queue_->Reserve();
          break;
        case Operation::kReduce:
          if (each_apart_ || last_micro_step()) Reduce(operation.group);
          break;
      }
      ++next_operation_;
    }
  }

  void WaitForNeeds(int position) {
    for (int group : schedule_->needs[position]) groups_[group]->Wait();
  }

  void FinishPass() {
    if (pass_ == Pass::kNone) return;
    AdvanceTo(schedule_->end());
    pass_ = Pass::kNone;
  }

  void Reduce(int group) {
    const CollectiveLabel label(groups_[group]->name());
    const int bucket = bucket_of_group_[group];
    const bool first = micro_step_ == 0, last = last_micro_step();
    at::Tensor sums = buckets_->Take(bucket);
    if (context_.deterministic) {
      sums = grid_buckets_.Add(bucket, sums, !reduce_once_ || first,
                               !reduce_once_ || last);
      if (!sums.defined()) return;
    }
    const at::Tensor& shard =
        grid_sums_.defined() ? grid_sums_ : shard_.gradient;
    queue_->Start(
        sums, shard.narrow(0, offsets_[group], groups_[group]->shard_numel()),
        /*add=*/!first && !reduce_once_, last);
  }

  bool last_micro_step() const { return micro_step_ + 1 == micro_steps_; }

  const Config config_;
  const bool reshard_;
  const int prefetch_;
  const bool reduce_once_;

  StrategyContext context_;
  // From and to shards in host memory.
  // Of parameters to the device, and of gradients back: with cpu_offload. A
  // device copies both ways at once.
  std::unique_ptr<SideStream> copies_, to_host_;
  ProcessGroup* shard_group_ = nullptr;    // ranks that share one copy
  ProcessGroup* replica_group_ = nullptr;  // ranks with the same shard, or null
  std::unique_ptr<ProcessGroup> own_shard_group_;
  std::unique_ptr<ProcessGroup> own_replica_group_;

  LayoutRules rules_;
  std::vector<GroupSpec> specs_;
  std::vector<FlatLayout> layouts_;  // one per group
  // The shards of all trainable groups, concatenated.
  OptimizerShard shard_;
  std::vector<int64_t> offsets_;    // of each group's part there; -1: frozen
  std::vector<at::Tensor> frozen_;  // one per group; undefined: trainable
  std::vector<std::unique_ptr<ParameterGroup>> groups_;
  std::vector<at::Tensor> parameters_;

  Schedule training_schedule_;
  Schedule forward_schedule_;
  Pass pass_ = Pass::kNone;
  const Schedule* schedule_ = nullptr;  // of the current pass
  int position_ = -1;
  size_t next_operation_ = 0;

  // Whether each micro-step's gradients are collected apart from the others'.
  bool each_apart_ = false;
  // In a deterministic run.
  at::Tensor grid_sums_;  // like the shard's gradient
  GridBuckets grid_buckets_;

  std::vector<int> bucket_of_group_;  // -1: frozen
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<ReduceQueue> queue_;
  int micro_step_ = 0;
  int micro_steps_ = 1;
};

}  // namespace

CAPSTAN_PLUGIN(Strategy, Fsdp, ::capstan::fsdp::Config,
               "fully sharded: parameters gathered a unit at a time");

}  // namespace capstan::fsdp
