// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/collective_label.h"
#include "base/side_stream.h"
#include "base/status.h"
#include "kernels/context/run_device.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/bucket_size.h"
#include "strategies/common/flat_layout.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/gradient_buckets.h"
#include "strategies/common/grid_sums.h"
#include "strategies/common/reduce_queue.h"
#include "strategies/zero2/zero2.pb.h"

namespace capstan::zero2 {
namespace {

// 32 MB of float32: enough for a network's full speed among a few ranks, and
// small compared to models from a few hundred million parameters on.
constexpr int64_t kLeastReduceBucket = 8'000'000;
// DeepSpeed's default; larger ones cost nothing, since gathers are in place.
constexpr int64_t kDefaultAllgatherBucket = 500'000'000;
// The first bucket is ready soonest; DDP's is 1 MiB, too.
constexpr int64_t kFirstBucket = 1 << 18;

int64_t OrDefault(int64_t value, int64_t otherwise) {
  return value > 0 ? value : otherwise;
}

// ZeRO stage 2 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
// Trillion Parameter Models", SC 2020, section 5.2): each rank has the whole
// working copy of the parameters, and one shard of gradients, masters and
// optimizer state.
//
// Parameters are in buckets in backward order. Each bucket is cut into one
// equal slice per rank; rank r's shard is slice r of each bucket. So a bucket
// takes one reduce-scatter, after which its buffer is freed, and one in-place
// all-gather. Parameters that an optimizer needs whole have separate buckets,
// whose slices hold whole parameters. Masters in the compute dtype (if not
// offloaded) are the rank's slices of the working copy itself.
class Zero2 final : public Strategy, public HeldGradients {
 public:
  static absl::StatusOr<std::unique_ptr<Zero2>> Create(const Config& config) {
    for (const auto& [field, elements] :
         {std::make_pair("reduce_bucket_size", config.reduce_bucket_size()),
          std::make_pair("allgather_bucket_size",
                         config.allgather_bucket_size())}) {
      CAPSTAN_RETURN_IF_ERROR(
          CheckField(elements >= 0, field,
                     "a number of elements, or 0 for the default", elements));
    }
    return std::unique_ptr<Zero2>(new Zero2(config));
  }

  absl::Status Check(const StrategyRequest& request) const override {
    return CheckPrecision(request.precision);
  }

  StrategyPlan Plan(const StrategyRequest& request) const override {
    const Model& model = *request.model;
    const std::vector<ParameterSpec>& specs = model.parameters();
    const int64_t compute = c10::elementSize(request.precision.compute);
    const int64_t reduce = c10::elementSize(request.precision.reduce);
    const int64_t master = c10::elementSize(request.precision.master);
    const int64_t ranks = request.world_size;
    FlatLayout layout;
    const std::vector<Bucket> buckets = MakeBuckets(
        specs, RulesOf(model, request.optimizer), request.world_size, &layout);
    const int64_t frozen = LayOut(StoredSpecs(model, request.precision.compute),
                                  BackwardOrder(specs, false))
                               .numel;

    StrategyPlan plan;
    plan.parameters = (layout.numel + frozen) * compute;
    plan.gradients = layout.numel / ranks * reduce;
    const int64_t sums = BytesOfSums(request);
    if (request.deterministic) plan.gradients += layout.numel / ranks * sums;
    if (separate_masters(request.precision)) {
      plan.masters = layout.numel / ranks * master;
      // The rank's slice in the compute dtype, before it is copied to the
      // device.
      if (offload_ && compute != master) {
        plan.masters += layout.numel / ranks * compute;
      }
    }
    plan.optimizer_elements = layout.numel / ranks;
    plan.optimizer_on_host = offload_;

    const size_t units = model.units().size();
    plan.forward_buckets.assign(units, 0);
    plan.backward_buckets.assign(units, 0);
    plan.collect_buckets.assign(units, 0);
    plan.backward_workspace =
        LargestGradients(model, request.precision.compute);
    if (reduce_once_ && request.accumulation > 1) {
      plan.forward_buckets.assign(units, layout.numel * sums);
      plan.backward_buckets = plan.forward_buckets;
      if (request.deterministic) {
        // The one that fills, before it is added.
        int64_t most = 0;
        for (const Bucket& b : buckets) most = std::max(most, b.numel());
        plan.backward_buckets.assign(units,
                                     layout.numel * sums + most * reduce);
      }
    } else {
      PlanBuckets(request, buckets, &plan);
    }
    const int64_t reductions = reduce_once_ ? 1 : request.accumulation;
    plan.sent_for_gradients =
        layout.numel / ranks * (ranks - 1) * sums * reductions;
    plan.sent_for_parameters = layout.numel / ranks * (ranks - 1) * compute;
    return plan;
  }

  absl::Status Setup(const StrategyContext& context) override {
    at::NoGradGuard no_grad;
    context_ = context;
    each_apart_ = !reduce_once_ || context.deterministic;
    copies_ = std::make_unique<SideStream>(context.group->device());
    const std::vector<ParameterSpec>& specs = context.model->parameters();
    buckets_ = MakeBuckets(specs, RulesOf(*context.model, context.optimizer),
                           context.group->size(), &layout_);
    parameters_.resize(specs.size());
    CAPSTAN_RETURN_IF_ERROR(MakeShards());
    CAPSTAN_RETURN_IF_ERROR(frozen_.Make(context, &parameters_));
    MakeParameters(*context.model, layout_, working_, &parameters_);
    context.model->Bind(parameters_);
    MakeGradientBuckets();
    return absl::OkStatus();
  }

  absl::Span<OptimizerShard> OptimizerShards() override {
    return absl::MakeSpan(shards_);
  }

  void BeginMicroStep(int index, int count) override {
    // Buckets left incomplete by the previous micro-step.
    if (index > 0 && each_apart_) gradient_buckets_->Finish();
    micro_step_ = index;
    micro_steps_ = count;
    gradient_buckets_->Begin(/*first=*/index == 0 || each_apart_,
                             /*last=*/index + 1 == count || each_apart_);
  }

  // Gathers of the last step's update may still be in progress.
  bool wants_unit_callbacks() const override { return true; }

  void PreForward(int unit) override {
    // Reductions finished long ago; free the last micro-step's buckets now.
    if (unit + 1 == static_cast<int>(slices_of_unit_.size())) queue_->Drain();
    if (gathering_ == 0) return;
    for (int slice : slices_of_unit_[unit]) WaitForGather(slices_[slice]);
  }

  void FinishBackward() override {
    // Gathers of units that this step didn't run.
    WaitForGathers();
    gradient_buckets_->Finish();
    // After an error in one micro-step the other ranks go on to the last.
    while (each_apart_ && micro_step_ + 1 < micro_steps_) {
      BeginMicroStep(micro_step_ + 1, micro_steps_);
      gradient_buckets_->Finish();
    }
    queue_->Drain();
    const at::NoGradGuard no_grad;
    if (grid_sums_.defined()) gradients_.copy_(grid_sums_);
    // The update writes what publishing it has copied.
    if (offload_) copies_->Wait();
  }

  void FixGradients() override { gradient_buckets_->Fix(); }
  void HoldReductions() override { gradient_buckets_->Hold(); }
  at::Tensor held() override { return gradient_buckets_->flat(); }
  HeldGradients* held_gradients() override { return this; }
  std::string GradientState() const override {
    return gradient_buckets_->State();
  }
  void SetGradientState(const std::string& state) override {
    gradient_buckets_->SetState(state);
  }

  at::Tensor GradientSquaredSum() override {
    return SquaredSum(gradients_, 0, gradients_.numel());
  }

  void PublishShard(int shard) override {
    at::NoGradGuard no_grad;
    Slice& slice = slices_[shard];
    if (context_.group->size() == 1) {
      if (!offload_) return;
      copies_->Run([&] { CopyToDevice(shard); });
      copies_->Join();
      return;
    }
    // Of an update that no forward has come after: a run that goes back.
    WaitForGather(slice);
    const int64_t numel = slice.whole.numel();
    for (Slice& earlier : slices_) {
      if (gathering_ == 0 || gathering_ + numel <= allgather_bucket_size_)
        break;
      WaitForGather(earlier);
    }
    const CollectiveLabel label("bucket", slice.bucket);
    const auto gather = [&] {
      slice.gather = context_.group->AllGather(slice.whole, slice.mine);
    };
    if (offload_) {
      // The gather waits for the copy alone.
      copies_->Run([&] {
        CopyToDevice(shard);
        gather();
      });
    } else {
      gather();
    }
    gathering_ += numel;
    if (!overlap_) WaitForGather(slice);
  }

  // Gathers have been started one by one; forward waits for what it needs.
  void PublishParameters(PublishCause) override {}

  std::vector<OwnedSlice> OwnedSlices() const override {
    std::vector<OwnedSlice> owned;
    for (size_t i = 0; i < shards_.size(); ++i) {
      owned.push_back({static_cast<int>(i), 0, shards_[i].master.numel()});
    }
    return owned;
  }

  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override {
    at::NoGradGuard no_grad;
    WaitForGathers();
    const std::vector<ParameterSpec>& specs = context_.model->parameters();
    const int frozen = static_cast<int>(slices_.size());
    std::vector<ParameterPlace> places(specs.size());
    SetPlaces(frozen_.layout, frozen, &places);
    for (const ParameterRange& range : layout_.ranges) {
      for (int i = 0; i < frozen; ++i) {
        const Bucket& bucket = buckets_[slices_[i].bucket];
        if (range.offset < bucket.begin || range.offset >= bucket.end) continue;
        places[range.parameter] = {i, range.offset - bucket.begin};
      }
    }
    ProcessGroup& group = *context_.group;
    return ForEachPlacedParameter(
        *context_.model, places, group.rank(),
        [&](int buffer) {
          if (buffer == frozen) return frozen_.flat;
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

 private:
  // This rank's slice of a bucket. Sorted in forward order: what the next
  // forward needs first is updated and gathered first.
  struct Slice {
    int bucket = 0;
    at::Tensor whole;  // the bucket of the working copy
    at::Tensor mine;   // this rank's part of it
    at::Tensor sums;   // where its gradient is summed
    std::unique_ptr<Work> gather;
  };

  explicit Zero2(const Config& config)
      : config_(config),
        allgather_bucket_size_(
            OrDefault(config.allgather_bucket_size(), kDefaultAllgatherBucket)),
        overlap_(!config.has_overlap_comm() || config.overlap_comm()),
        offload_(config.offload_optimizer().device() ==
                 Config::OffloadOptimizer::CPU),
        reduce_once_(config.accumulation() == Config::REDUCE_ONCE) {}

  // Of an element of the sums, which ranks send.
  static int64_t BytesOfSums(const StrategyRequest& request) {
    return request.deterministic ? kGridSumBytes
                                 : static_cast<int64_t>(c10::elementSize(
                                       request.precision.reduce));
  }

  // The buckets that exist unit by unit if each micro-step reduces them.
  void PlanBuckets(const StrategyRequest& request,
                   const std::vector<Bucket>& buckets,
                   StrategyPlan* plan) const {
    const std::vector<ParameterSpec>& specs = request.model->parameters();
    const int64_t element = c10::elementSize(request.precision.reduce);
    const int64_t sum = BytesOfSums(request);
    const int reducing = overlap_ ? kReducesUnderWay : 0;
    // Whether a sum's slice is in a separate buffer until it is added.
    bool apart = offload_ || request.accumulation > 1;
    const auto reduced = [&](int b) {
      const int64_t bytes = buckets[b].numel() * sum;
      return bytes + (apart ? bytes / request.world_size : 0);
    };
    // The buckets being reduced when all before `b` are complete.
    const auto under_way = [&](int b) {
      int64_t bytes = 0;
      for (int k = std::max(0, b - reducing); k < b; ++k) bytes += reduced(k);
      // A slice on its way to host memory.
      if (offload_ && b > reducing) {
        const Bucket& copied = buckets[b - reducing - 1];
        bytes += copied.numel() * sum / request.world_size;
      }
      return bytes;
    };
    const auto fills = [&](int b) {
      const int64_t bytes = buckets[b].numel() * element;
      if (request.deterministic) return bytes;
      return reducing == 0 ? std::max(bytes, reduced(b)) : bytes;
    };
    const std::vector<int> bucket_of = BucketOfEach(buckets, specs.size());
    // Gradients come one by one. Buckets of whole parameters fill while another
    // bucket does; all are complete in order.
    const std::vector<int> order = BackwardOrder(specs, /*trainable=*/true);
    auto gradient = order.begin();
    int64_t filling = 0;
    int complete = 0;
    for (int unit = static_cast<int>(plan->backward_buckets.size()) - 1;
         unit >= 0; --unit) {
      const int64_t before = under_way(complete) + filling;
      int64_t most = before;
      for (; gradient != order.end() && specs[*gradient].unit == unit;
           ++gradient) {
        const int b = bucket_of[*gradient];
        if (*gradient == buckets[b].parameters.front()) {
          filling += fills(b);
          most = std::max(most, under_way(complete) + filling);
        }
        if (*gradient == buckets[b].parameters.back()) {
          // Until all is on the grid there are both.
          if (request.deterministic) {
            most = std::max(
                most, under_way(complete) + filling + buckets[b].numel() * sum);
          }
          filling -= fills(b);
          complete = b + 1;
        }
      }
      plan->backward_buckets[unit] = before;
      plan->collect_buckets[unit] = most - before;
    }
    // Backward has ended, but not the last reductions.
    const int count = static_cast<int>(buckets.size());
    plan->publish_buckets = under_way(count);
    if (request.accumulation == 1) return;
    // The last ones are reduced during the next micro-step's forward; those of
    // the first micro-step have nothing to be added to.
    apart = offload_ || request.accumulation > 2;
    plan->forward_buckets.assign(plan->forward_buckets.size(),
                                 under_way(count));
    plan->forward_buckets.back() = 0;
  }

  std::vector<Bucket> MakeBuckets(const std::vector<ParameterSpec>& specs,
                                  const LayoutRules& rules, int world_size,
                                  FlatLayout* layout) const {
    const int64_t size =
        OrDefault(config_.reduce_bucket_size(),
                  DefaultBucket(CurrentRunDevice().gpu, world_size, specs,
                                kLeastReduceBucket));
    return LayOutBuckets(specs, rules, world_size, std::min(kFirstBucket, size),
                         size, layout);
  }

  bool separate_masters(const PrecisionPolicy& precision) const {
    return offload_ || precision.compute != precision.master;
  }

  absl::Status MakeShards() {
    const PrecisionPolicy& precision = context_.precision;
    const int ranks = context_.group->size(), rank = context_.group->rank();
    const auto device = at::TensorOptions().device(context_.group->device());
    const bool pin = offload_ && context_.group->device().is_cuda() &&
                     (!config_.offload_optimizer().has_pin_memory() ||
                      config_.offload_optimizer().pin_memory());
    const auto home =
        offload_ ? at::TensorOptions().device(at::kCPU).pinned_memory(pin)
                 : device;
    const int64_t share = layout_.numel / ranks;
    working_ = Zeros(MemoryCategory::kParameters, layout_.numel, device,
                     precision.compute);
    gradients_ =
        Zeros(MemoryCategory::kGradients, share, home, precision.reduce);
    if (context_.deterministic) {
      grid_sums_ = Zeros(MemoryCategory::kGradients, share, home, at::kDouble);
    }
    const bool separate = separate_masters(precision);
    const bool mixed = precision.compute != precision.master;
    at::Tensor masters, staging;
    if (separate) {
      masters = Zeros(MemoryCategory::kMasters, share, home, precision.master);
    }
    if (offload_ && mixed) {
      staging = Zeros(MemoryCategory::kMasters, share, home, precision.compute);
    }
    int64_t offset = 0;
    for (int b = static_cast<int>(buckets_.size()) - 1; b >= 0; --b) {
      const int64_t length = buckets_[b].numel() / ranks;
      const int64_t begin = buckets_[b].begin + rank * length;
      Slice slice;
      slice.bucket = b;
      slice.whole = working_.narrow(0, buckets_[b].begin, buckets_[b].numel());
      slice.mine = working_.narrow(0, begin, length);
      slice.sums = (grid_sums_.defined() ? grid_sums_ : gradients_)
                       .narrow(0, offset, length);
      OptimizerShard shard;
      shard.ranges = CutRanges(layout_, begin, begin + length);
      shard.master = separate ? masters.narrow(0, offset, length) : slice.mine;
      shard.gradient = gradients_.narrow(0, offset, length);
      if (mixed) {
        shard.working =
            offload_ ? staging.narrow(0, offset, length) : slice.mine;
      }
      CAPSTAN_RETURN_IF_ERROR(FillInitialValues(*context_.model, context_.seed,
                                                shard.ranges, shard.master));
      if (mixed) shard.working.copy_(shard.master);
      slices_.push_back(std::move(slice));
      shards_.push_back(std::move(shard));
      offset += length;
    }
    return absl::OkStatus();
  }

  void MakeGradientBuckets() {
    const std::vector<ParameterSpec>& specs = context_.model->parameters();
    slices_of_unit_.resize(context_.model->units().size());
    for (size_t i = 0; i < slices_.size(); ++i) {
      for (int parameter : buckets_[slices_[i].bucket].parameters) {
        std::vector<int> users = specs[parameter].other_units;
        users.push_back(specs[parameter].unit);
        for (int unit : users) {
          std::vector<int>& slices = slices_of_unit_[unit];
          if (std::find(slices.begin(), slices.end(), i) == slices.end()) {
            slices.push_back(static_cast<int>(i));
          }
        }
      }
    }
    queue_ =
        std::make_unique<ReduceQueue>(context_.group, nullptr, copies_.get());
    GradientBuckets::Options options;
    options.dtype = context_.precision.reduce;
    options.on_ready = [this](int bucket) { Reduce(bucket); };
    options.model = context_.model;
    gradient_buckets_ = std::make_unique<GradientBuckets>(
        specs, layout_, buckets_, parameters_, std::move(options));
  }

  void Reduce(int bucket) {
    const Slice& slice = slices_[slices_.size() - 1 - bucket];
    const CollectiveLabel label("bucket", bucket);
    const bool first = micro_step_ == 0;
    const bool last = micro_step_ + 1 == micro_steps_;
    at::Tensor sums = gradient_buckets_->Take(bucket);
    if (context_.deterministic) {
      if (!reduce_once_ || last) queue_->Reserve();
      sums = grid_buckets_.Add(bucket, sums, !reduce_once_ || first,
                               !reduce_once_ || last);
      if (!sums.defined()) return;
    }
    queue_->Start(sums, slice.sums, /*add=*/!first && !reduce_once_, last);
    if (!overlap_) queue_->Drain();
  }

  // An updated shard in host memory to its place in the working copy.
  void CopyToDevice(int shard) {
    const OptimizerShard& s = shards_[shard];
    slices_[shard].mine.copy_(s.working.defined() ? s.working : s.master,
                              /*non_blocking=*/true);
  }

  void WaitForGather(Slice& slice) {
    if (slice.gather == nullptr) return;
    slice.gather->Wait();
    slice.gather.reset();
    gathering_ -= slice.whole.numel();
  }

  void WaitForGathers() {
    for (Slice& slice : slices_) WaitForGather(slice);
  }

  const Config config_;
  const int64_t allgather_bucket_size_;
  const bool overlap_;
  const bool offload_;
  const bool reduce_once_;

  StrategyContext context_;
  // Whether each micro-step's gradients are collected apart from the others'.
  bool each_apart_ = false;
  std::unique_ptr<SideStream> copies_;  // from and to host memory
  FlatLayout layout_;  // trainable parameters, in padded buckets
  std::vector<Bucket> buckets_;
  at::Tensor working_;    // [layout_.numel], compute dtype
  at::Tensor gradients_;  // [layout_.numel / ranks], reduce dtype
  FrozenParameters frozen_;
  std::vector<at::Tensor> parameters_;

  std::vector<OptimizerShard> shards_;  // shards_[i] is of slices_[i]
  std::vector<Slice> slices_;
  std::vector<std::vector<int>> slices_of_unit_;
  int64_t gathering_ = 0;  // elements in progress

  std::unique_ptr<GradientBuckets> gradient_buckets_;
  // In a deterministic run.
  at::Tensor grid_sums_;  // like gradients_
  GridBuckets grid_buckets_;
  std::unique_ptr<ReduceQueue> queue_;
  int micro_step_ = 0;
  int micro_steps_ = 1;
};

}  // namespace

CAPSTAN_PLUGIN(Strategy, Zero2, ::capstan::zero2::Config,
               "ZeRO stage 2: gradients, masters and optimizer state sharded");

}  // namespace capstan::zero2
