// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/collective_label.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/replicated.h"
#include "strategies/diloco/diloco.pb.h"
#include "strategies/diloco/mean_change.h"

namespace capstan::diloco {
namespace {

constexpr int64_t kDefaultLocalSteps = 500;
constexpr double kDefaultLearningRate = 0.7;
constexpr double kDefaultMomentum = 0.9;
constexpr double kDefaultLossBound = 0.1;

// Each rank's shard is its whole replica. The shared model and the outer
// momentum are the same bits on all ranks: each computes them for itself from
// the same mean.
class DiLoCo final : public ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<DiLoCo>> Create(const Config& config) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(config.local_steps() >= 0, "local_steps",
                                       "a number of steps, or 0 for the "
                                       "default",
                                       config.local_steps()));
    auto diloco = std::unique_ptr<DiLoCo>(new DiLoCo(config));
    const double rate = diloco->learning_rate_;
    CAPSTAN_RETURN_IF_ERROR(CheckField(std::isfinite(rate) && rate > 0.0,
                                       "outer_learning_rate", "above 0", rate));
    const double momentum = diloco->momentum_factor_;
    CAPSTAN_RETURN_IF_ERROR(CheckField(momentum >= 0.0 && momentum < 1.0,
                                       "outer_momentum", "from 0 to below 1",
                                       momentum));
    const double bound = diloco->loss_bound_;
    CAPSTAN_RETURN_IF_ERROR(
        CheckField(bound >= 0.0, "loss_bound", "0 or more", bound));
    return diloco;
  }

  absl::Status Check(const StrategyRequest& request) const override {
    return CheckPrecision(request.precision);
  }

  StrategyPlan Plan(const StrategyRequest& request) const override {
    StrategyPlan plan = ReplicatedStrategy::Plan(request);
    const int64_t elements = plan.optimizer_elements;
    // The shared model and its momentum, in float32.
    plan.masters += 2 * elements * static_cast<int64_t>(sizeof(float));
    plan.sent_for_gradients = 0;
    plan.sent_for_parameters =
        MeanChange::Sent(elements, deltas_, request.world_size) / local_steps_;
    plan.publish_buckets =
        MeanChange::Workspace(elements, deltas_, request.world_size);
    return plan;
  }

  bool local_steps() const override { return true; }
  absl::optional<OwnCurve> own_curve() const override {
    return OwnCurve{loss_bound_, absl::StrCat("ranks synchronise every ",
                                              local_steps_, " steps")};
  }

  absl::Status Setup(const StrategyContext& context) override {
    constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();
    CAPSTAN_RETURN_IF_ERROR(SetUp(context, kOneBucket, kOneBucket, nullptr));
    const MemoryScope scope(MemoryCategory::kMasters);
    shared_ = shard().master.clone();
    momentum_ = at::zeros_like(shared_);
    return absl::OkStatus();
  }

  // Ranks don't sum gradients.
  void Reduce() override {
    if (!gradients().buckets().empty()) gradients().Take(0);
  }

  at::Tensor SharedMaster(int) override { return shared_; }
  std::vector<std::string> state_names() const override {
    return {"outer_momentum"};
  }
  std::vector<at::Tensor> ShardState(int) override { return {momentum_}; }

  void UseSharedModel(bool use) override {
    if (use == shared_in_use_) return;
    shared_in_use_ = use;
    const at::NoGradGuard no_grad;
    // Until called with false, each has the other's values.
    at::Tensor& own = shard().master;
    constexpr int64_t kPart = int64_t{1} << 20;
    for (int64_t begin = 0; begin < own.numel(); begin += kPart) {
      const int64_t count = std::min(kPart, own.numel() - begin);
      at::Tensor a = own.narrow(0, begin, count);
      at::Tensor b = shared_.narrow(0, begin, count);
      const at::Tensor kept = a.clone();
      a.copy_(b);
      b.copy_(kept);
    }
    CopyToWorking();
  }

  void EndStep(int64_t step) override {
    if (step % local_steps_ == 0) Synchronise();
  }
  void BeforeExport() override {
    // If all replicas are the shared model, there is nothing left to do, and
    // another outer step would move it by its momentum.
    double apart[] = {shard().master.equal(shared_) ? 0.0 : 1.0};
    group().AllReduceHost(absl::MakeSpan(apart));
    if (apart[0] > 0.0) Synchronise();
  }

 private:
  explicit DiLoCo(const Config& config)
      : local_steps_(config.local_steps() > 0 ? config.local_steps()
                                              : kDefaultLocalSteps),
        learning_rate_(config.has_outer_learning_rate()
                           ? config.outer_learning_rate()
                           : kDefaultLearningRate),
        momentum_factor_(config.has_outer_momentum() ? config.outer_momentum()
                                                     : kDefaultMomentum),
        loss_bound_(config.has_loss_bound() ? config.loss_bound()
                                            : kDefaultLossBound),
        deltas_(config.deltas()) {}

  // An outer step: torch.optim.SGD with nesterov=True, whose gradient is the
  // shared model minus the mean of the replicas (algorithm 1, lines 12 to 14).
  // All ranks go on from the result.
  void Synchronise() {
    const at::NoGradGuard no_grad;
    const CollectiveLabel label("outer step", 0);
    const MemoryScope scope(MemoryCategory::kBuckets);
    MeanChange mean(shared_, shard().master, deltas_, &group());
    while (mean.Next()) {
      const at::Tensor& gradient = mean.value();
      at::Tensor momentum = momentum_.narrow(0, mean.begin(), gradient.numel());
      momentum.mul_(momentum_factor_).add_(gradient);
      gradient.add_(momentum, momentum_factor_);
      shared_.narrow(0, mean.begin(), gradient.numel())
          .sub_(gradient, learning_rate_);
    }
    shard().master.copy_(shared_);
    CopyToWorking();
  }

  void CopyToWorking() {
    if (shard().working.defined()) shard().working.copy_(shard().master);
  }

  const int64_t local_steps_;
  const double learning_rate_;
  const double momentum_factor_;
  const double loss_bound_;
  const Config::Deltas deltas_;
  at::Tensor shared_;    // like the shard's master, as the next
  at::Tensor momentum_;  // the outer optimizer's
  bool shared_in_use_ = false;
};

}  // namespace

CAPSTAN_PLUGIN(Strategy, DiLoCo, capstan::diloco::Config,
               "local steps on each rank, and an outer optimizer for slow "
               "networks");

}  // namespace capstan::diloco
