// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/collective_label.h"
#include "base/status.h"
#include "kernels/context/on_paper.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_layout.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/replicated.h"
#include "strategies/diloco/diloco.pb.h"
#include "strategies/diloco/exchange.h"
#include "strategies/diloco/parts.h"
#include "strategies/diloco/wrapping.h"

namespace capstan::diloco {
namespace {

constexpr int64_t kDefaultLocalSteps = 500;
constexpr double kDefaultLearningRate = 0.7;
constexpr double kDefaultMomentum = 0.9;
constexpr double kDefaultLossBound = 0.1;
constexpr double kDefaultOwnShare = 0.5;
constexpr char kDefaultInner[] = "capstan.fsdp.Config";

// A replica of one rank.
class OneRank final : public ReplicatedStrategy {
 public:
  absl::Status Check(const StrategyRequest& request) const override {
    return CheckPrecision(request.precision);
  }
  absl::Status Setup(const StrategyContext& context) override {
    constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();
    return SetUp(context, kOneBucket, kOneBucket, nullptr);
  }
  void Reduce() override {
    if (!gradients().buckets().empty()) gradients().Take(0);
  }
};

// The numbers of a config, with defaults.
struct Numbers {
  explicit Numbers(const Config& config)
      : learning_rate(config.has_outer_learning_rate()
                          ? config.outer_learning_rate()
                          : kDefaultLearningRate),
        momentum(config.has_outer_momentum() ? config.outer_momentum()
                                             : kDefaultMomentum),
        loss_bound(config.has_loss_bound() ? config.loss_bound()
                                           : kDefaultLossBound),
        own_share(config.has_own_share()       ? config.own_share()
                  : config.overlap_steps() > 0 ? kDefaultOwnShare
                                               : 0.0),
        site(std::max(1, config.site_ranks())),
        exchange{config.deltas(), config.overlap_steps() > 0} {
    rounds.local_steps =
        config.local_steps() > 0 ? config.local_steps() : kDefaultLocalSteps;
    rounds.parts = static_cast<int>(std::min<int64_t>(
        std::max<int64_t>(1, config.parts()), rounds.local_steps));
    rounds.overlap = config.overlap_steps();
  }

  absl::Status Check(const Config& config) const;

  const double learning_rate;
  const double momentum;
  const double loss_bound;
  const double own_share;
  const int site;  // ranks
  const ExchangeOptions exchange;
  Rounds rounds;
};

absl::Status Numbers::Check(const Config& config) const {
  CAPSTAN_RETURN_IF_ERROR(CheckField(config.local_steps() >= 0, "local_steps",
                                     "a number of steps, or 0 for the default",
                                     config.local_steps()));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(std::isfinite(learning_rate) && learning_rate > 0.0,
                 "outer_learning_rate", "above 0", learning_rate));
  CAPSTAN_RETURN_IF_ERROR(CheckField(momentum >= 0.0 && momentum < 1.0,
                                     "outer_momentum", "from 0 to below 1",
                                     momentum));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(loss_bound >= 0.0, "loss_bound", "0 or more", loss_bound));
  const int64_t steps = rounds.local_steps;
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      config.parts() >= 0 && config.parts() <= steps, "parts",
      absl::StrCat("from 1 to local_steps, ", steps, ", or 0 for the default"),
      config.parts()));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      rounds.overlap >= 0 && rounds.overlap < steps, "overlap_steps",
      absl::StrCat("from 0 to below local_steps, ", steps), rounds.overlap));
  CAPSTAN_RETURN_IF_ERROR(CheckField(own_share >= 0.0 && own_share < 1.0,
                                     "own_share", "from 0 to below 1",
                                     own_share));
  return CheckField(config.site_ranks() >= 0, "site_ranks",
                    "a number of ranks, or 0 for 1", config.site_ranks());
}

// The inner strategy's error as one of this config's field.
absl::Status InInner(const absl::Status& status) {
  if (status.ok()) return status;
  const absl::optional<std::string> field = FieldOf(status);
  return FieldError(
      field.has_value() ? absl::StrCat("inner.", *field) : "inner",
      status.message());
}

// The strategy that trains a replica.
absl::StatusOr<std::unique_ptr<Strategy>> MakeInner(const Config& config) {
  std::unique_ptr<Strategy> inner;
  if (config.has_inner()) {
    const std::string& url = config.inner().type_url();
    absl::StatusOr<std::unique_ptr<Strategy>> made =
        CreateStrategy(url.substr(url.rfind('/') + 1), config.inner().value());
    if (!made.ok()) return InInner(made.status());
    inner = *std::move(made);
  } else if (config.site_ranks() > 1) {
    CAPSTAN_ASSIGN_OR_RETURN(inner, CreateStrategy(kDefaultInner, ""));
  } else {
    inner = std::make_unique<OneRank>();
  }
  if (inner->local_steps() || !inner->state_names().empty()) {
    return FieldError("inner",
                      "must keep its ranks in step, and have no state of its "
                      "own: capstan.fsdp, for example");
  }
  return inner;
}

// The ranks of a run are sites of neighbours, each of which trains a replica by
// an inner strategy. A rank exchanges what it holds of the replica with the
// ranks in its place in the other sites. The shared model and the outer
// momentum are the same bits in all sites: each computes them from the same
// mean. They are cut over a site's ranks as the replica is.
//
// The shared model moves when an exchange begins, whenever that is computed:
// who reads it waits for what is under way. So the replicas' curve doesn't
// depend on who reads it when, and a checkpoint has nothing pending.
class DiLoCo final : public WrappingStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<DiLoCo>> Create(const Config& config) {
    CAPSTAN_RETURN_IF_ERROR(Numbers(config).Check(config));
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Strategy> inner,
                             MakeInner(config));
    return std::unique_ptr<DiLoCo>(
        new DiLoCo(Numbers(config), std::move(inner)));
  }

  absl::Status Check(const StrategyRequest& request) const override {
    const int world = request.world_size;
    if (world % numbers_.site != 0) {
      return FieldError("site_ranks",
                        absl::StrCat("is ", numbers_.site,
                                     ", which doesn't divide this run's ",
                                     world, " ranks into equal sites"));
    }
    if (numbers_.exchange.overlaps &&
        world / numbers_.site > kMostThatOverlapInBytes &&
        numbers_.exchange.deltas == Config::INT8) {
      return FieldError(
          "deltas",
          absl::StrCat("INT8 with overlap_steps is for at most ",
                       kMostThatOverlapInBytes, " replicas, this run has ",
                       world / numbers_.site, ": FLOAT32 sends less"));
    }
    const absl::Status status = inner().Check(OfSite(request));
    return FieldOf(status).has_value() ? InInner(status) : status;
  }

  StrategyPlan Plan(const StrategyRequest& request) const override;

  bool local_steps() const override { return true; }
  absl::optional<OwnCurve> own_curve() const override {
    return OwnCurve{
        numbers_.loss_bound,
        absl::StrCat(numbers_.site > 1 ? "sites" : "ranks",
                     " synchronise every ", rounds_.local_steps, " steps")};
  }
  ProcessGroup* replica_group() override {
    return numbers_.site > 1 ? site_ : nullptr;
  }
  // Publishing the shared model may be collective.
  bool collective_forward() const override {
    return numbers_.site > 1 || inner().collective_forward();
  }

  absl::Status Setup(const StrategyContext& context) override;

  at::Tensor SharedMaster(int shard) override {
    Settle();
    return shared_[shard];
  }
  std::vector<std::string> state_names() const override {
    return {"outer_momentum"};
  }
  std::vector<at::Tensor> ShardState(int shard) override {
    Settle();
    return {momentum_[shard]};
  }
  std::vector<OwnedSlice> ReplicaSlices() const override {
    return inner().OwnedSlices();
  }
  std::vector<OwnedSlice> OwnedSlices() const override;

  void UseSharedModel(bool use) override;
  void EndStep(int64_t step) override;
  void BeforeExport() override;
  void Restored(int64_t step) override {
    inner().Restored(step);
    step_ = step;
  }

  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override;

 private:
  // A slice's exchange.
  struct UnderWay {
    int part = 0;
    OwnedSlice slice;
    std::unique_ptr<Exchange> exchange;
  };

  DiLoCo(Numbers numbers, std::unique_ptr<Strategy> inner)
      : WrappingStrategy(std::move(inner)),
        numbers_(std::move(numbers)),
        rounds_(numbers_.rounds) {}

  StrategyRequest OfSite(StrategyRequest request) const {
    request.world_size = numbers_.site;
    return request;
  }
  absl::Status SplitRanks();

  at::Tensor Of(const at::Tensor& shard, const OwnedSlice& slice) const {
    return shard.narrow(0, slice.begin, slice.end - slice.begin);
  }
  at::Tensor Own(const OwnedSlice& slice) {
    return Of(OptimizerShards()[slice.shard].master, slice);
  }
  at::Tensor Shared(const OwnedSlice& slice) const {
    return Of(shared_[slice.shard], slice);
  }

  std::unique_ptr<Exchange> Begin(const OwnedSlice& slice) {
    return std::make_unique<Exchange>(Shared(slice), Own(slice),
                                      numbers_.exchange, across_);
  }
  // Moves the shared model by the mean of the replicas' changes.
  void Step(const OwnedSlice& slice, Exchange& exchange);
  // Completes what is under way up to that of `part`, or all.
  void Settle(int part = -1);
  // Exchanges a part, and waits for it.
  void Synchronise(int part);
  // The replica keeps `share` of its own weights of a part.
  void TakeShared(int part, double share);
  // The masters were changed.
  void PublishMasters();

  const Numbers numbers_;
  const Rounds& rounds_;
  StrategyContext context_;
  ProcessGroup* site_ = nullptr;    // of the ranks that train this replica
  ProcessGroup* across_ = nullptr;  // of those in this one's place
  std::unique_ptr<ProcessGroup> own_site_;
  std::unique_ptr<ProcessGroup> own_across_;
  LayoutRules rules_;
  std::vector<std::vector<OwnedSlice>> parts_;
  std::vector<at::Tensor> shared_;    // like the shards' masters, as the next
  std::vector<at::Tensor> momentum_;  // the outer optimizer's
  std::deque<UnderWay> under_way_;
  bool shared_in_use_ = false;
  int64_t step_ = 0;  // the last one that ended
};

StrategyPlan DiLoCo::Plan(const StrategyRequest& request) const {
  StrategyPlan plan = inner().Plan(OfSite(request));
  const int64_t elements = plan.optimizer_elements;
  const int replicas = request.world_size / numbers_.site;
  // The shared model and its momentum, in float32.
  plan.masters += 2 * elements * static_cast<int64_t>(sizeof(float));
  plan.sent_for_parameters +=
      Exchange::Sent(elements, numbers_.exchange, replicas) /
      rounds_.local_steps;
  ExchangeOptions at_once = numbers_.exchange;
  at_once.overlaps = false;
  const int64_t part = (elements + rounds_.parts - 1) / rounds_.parts;
  int64_t publish =
      Exchange::Memory(std::min(part, kMostExchanged), at_once, replicas);
  if (numbers_.exchange.overlaps) {
    const int64_t under_way =
        rounds_.most_under_way() *
        Exchange::Memory(part, numbers_.exchange, replicas);
    for (std::vector<int64_t>* const buckets :
         {&plan.forward_buckets, &plan.backward_buckets}) {
      for (int64_t& bytes : *buckets) bytes += under_way;
    }
    publish += under_way;
  }
  plan.publish_buckets += publish;
  return plan;
}

absl::Status DiLoCo::SplitRanks() {
  site_ = across_ = context_.group;
  const int world = context_.group->size();
  Mesh mesh;
  mesh.data = world / numbers_.site;
  mesh.shard = numbers_.site;
  const auto split = [&](MeshAxis axis) {
    NoteSplit(world, [&](int rank) { return mesh.color(axis, rank); });
    return context_.group->Split(mesh.color(axis, context_.group->rank()));
  };
  if (mesh.data > 1) {
    CAPSTAN_ASSIGN_OR_RETURN(own_site_, split(MeshAxis::kShard));
    site_ = own_site_.get();
  }
  // Of its own also for the ranks of all: exchanges are beside other
  // collectives.
  if (mesh.shard > 1 || (numbers_.exchange.overlaps && world > 1)) {
    CAPSTAN_ASSIGN_OR_RETURN(own_across_, split(MeshAxis::kData));
    across_ = own_across_.get();
  }
  return absl::OkStatus();
}

absl::Status DiLoCo::Setup(const StrategyContext& context) {
  context_ = context;
  CAPSTAN_RETURN_IF_ERROR(SplitRanks());
  StrategyContext of_site = context;
  of_site.group = site_;
  CAPSTAN_RETURN_IF_ERROR(inner().Setup(of_site));
  rules_ = RulesOf(*context.model, context.optimizer);
  parts_ = CutParts(context.model->parameters(), OptimizerShards(),
                    rounds_.parts, kMostExchanged);
  const MemoryScope scope(MemoryCategory::kMasters);
  for (const OptimizerShard& shard : OptimizerShards()) {
    shared_.push_back(shard.master.clone());
    momentum_.push_back(at::zeros_like(shared_.back()));
  }
  return absl::OkStatus();
}

// Replicas share the work: of each slice that is this rank's within its site,
// a part.
std::vector<OwnedSlice> DiLoCo::OwnedSlices() const {
  const int replicas = context_.group->size() / numbers_.site;
  const int replica = context_.group->rank() / numbers_.site;
  std::vector<OwnedSlice> owned;
  for (const OwnedSlice& slice : inner().OwnedSlices()) {
    const auto [begin, end] =
        RankSlice(slice.end - slice.begin, replica, replicas, rules_.multiple);
    owned.push_back({slice.shard, slice.begin + begin, slice.begin + end});
  }
  return owned;
}

void DiLoCo::UseSharedModel(bool use) {
  if (use == shared_in_use_) return;
  Settle();
  shared_in_use_ = use;
  const at::NoGradGuard no_grad;
  const absl::Span<OptimizerShard> shards = OptimizerShards();
  const at::Device device = context_.group->device();
  if (!shards.empty() && shards[0].master.device() != device) {
    // It may still be copying from masters in host memory.
    at::zeros({}, device).item();
  }
  // Until called with false, each has the other's values.
  for (size_t s = 0; s < shards.size(); ++s) {
    constexpr int64_t kPiece = int64_t{1} << 20;
    const at::Tensor& own = shards[s].master;
    for (int64_t begin = 0; begin < own.numel(); begin += kPiece) {
      const OwnedSlice piece = {static_cast<int>(s), begin,
                                std::min(begin + kPiece, own.numel())};
      const at::Tensor kept = Own(piece).clone();
      Own(piece).copy_(Shared(piece));
      Shared(piece).copy_(kept);
    }
  }
  PublishMasters();
}

void DiLoCo::EndStep(int64_t step) {
  inner().EndStep(step);
  step_ = step;
  bool changed = false;
  for (int part = 0; part < rounds_.parts; ++part) {
    if (rounds_.overlap == 0 && rounds_.Begins(part, step)) Synchronise(part);
    if (!rounds_.Ends(part, step)) continue;
    Settle(part);
    TakeShared(part, numbers_.own_share);
    changed = true;
  }
  for (int part = 0; part < rounds_.parts && rounds_.overlap > 0; ++part) {
    if (!rounds_.Begins(part, step)) continue;
    const at::NoGradGuard no_grad;
    const CollectiveLabel label("outer step", part);
    const MemoryScope scope(MemoryCategory::kBuckets);
    for (const OwnedSlice& slice : parts_[part]) {
      under_way_.push_back({part, slice, Begin(slice)});
    }
  }
  if (changed) PublishMasters();
}

// What is under way ends as if the replicas had waited for it: what they have
// trained since is lost. The rest is exchanged, unless all replicas are the
// shared model there: another outer step would move it by its momentum.
void DiLoCo::BeforeExport() {
  inner().BeforeExport();
  Settle();
  double apart[] = {0.0};
  std::vector<int> rest;
  for (int part = 0; part < rounds_.parts; ++part) {
    if (rounds_.UnderWay(part, step_)) {
      TakeShared(part, 0.0);
      continue;
    }
    rest.push_back(part);
    for (const OwnedSlice& slice : parts_[part]) {
      if (!Own(slice).equal(Shared(slice))) apart[0] = 1.0;
    }
  }
  context_.group->AllReduceHost(absl::MakeSpan(apart));
  for (const int part : rest) {
    if (apart[0] == 0.0) break;
    Synchronise(part);
    TakeShared(part, 0.0);
  }
  PublishMasters();
}

absl::Status DiLoCo::ForEachFullParameter(
    const std::function<absl::Status(int, const at::Tensor&)>& fn) {
  const bool in_use = shared_in_use_;
  UseSharedModel(true);
  const absl::Status status =
      inner().ForEachFullParameter([&](int index, const at::Tensor& value) {
        // Also called on other sites' first ranks.
        return context_.group->rank() == 0 ? fn(index, value)
                                           : absl::OkStatus();
      });
  UseSharedModel(in_use);
  return status;
}

// As torch.optim.SGD with nesterov=True, whose gradient is the shared model
// minus the mean of the replicas (algorithm 1, lines 12 to 14).
void DiLoCo::Step(const OwnedSlice& slice, Exchange& exchange) {
  const at::Tensor gradient = exchange.Mean();
  at::Tensor momentum = Of(momentum_[slice.shard], slice);
  momentum.mul_(numbers_.momentum).add_(gradient);
  gradient.add_(momentum, numbers_.momentum);
  Shared(slice).sub_(gradient, numbers_.learning_rate);
}

void DiLoCo::Settle(int part) {
  const at::NoGradGuard no_grad;
  const MemoryScope scope(MemoryCategory::kBuckets);
  const auto last = std::find_if(
      under_way_.rbegin(), under_way_.rend(),
      [&](const UnderWay& one) { return part < 0 || one.part == part; });
  for (auto count = under_way_.rend() - last; count > 0; --count) {
    Step(under_way_.front().slice, *under_way_.front().exchange);
    under_way_.pop_front();
  }
}

void DiLoCo::Synchronise(int part) {
  const at::NoGradGuard no_grad;
  const CollectiveLabel label("outer step", part);
  const MemoryScope scope(MemoryCategory::kBuckets);
  for (const OwnedSlice& slice : parts_[part]) Step(slice, *Begin(slice));
}

void DiLoCo::TakeShared(int part, double share) {
  const at::NoGradGuard no_grad;
  for (const OwnedSlice& slice : parts_[part]) {
    at::Tensor own = Own(slice);
    if (share == 0.0) {
      own.copy_(Shared(slice));
    } else {
      own.mul_(share).add_(Shared(slice), 1.0 - share);
    }
  }
}

void DiLoCo::PublishMasters() {
  const at::NoGradGuard no_grad;
  const absl::Span<OptimizerShard> shards = OptimizerShards();
  for (size_t s = 0; s < shards.size(); ++s) {
    if (shards[s].working.defined()) shards[s].working.copy_(shards[s].master);
    PublishShard(static_cast<int>(s));
  }
  PublishParameters(PublishCause::kUpdated);
}

}  // namespace

CAPSTAN_PLUGIN(Strategy, DiLoCo, capstan::diloco::Config,
               "local steps on each rank or site, and an outer optimizer for "
               "slow networks");

}  // namespace capstan::diloco
