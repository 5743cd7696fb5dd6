// SPDX-License-Identifier: Apache-2.0
//
// Without a bug it passes the whole suite, so failures are due to its bugs.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/replicated.h"
#include "tests/conformance/broken/broken_local.pb.h"

namespace acme::broken_local {
namespace {

constexpr int kEvery = 2;      // steps between synchronisations
constexpr double kRate = 0.7;  // of the outer step
constexpr double kMomentum = 0.9;

class BrokenLocal final : public capstan::ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenLocal>> Create(
      const Config& config) {
    return std::unique_ptr<BrokenLocal>(new BrokenLocal(config.bug()));
  }

  absl::Status Check(const capstan::StrategyRequest& request) const override {
    return request.world_size <= 2
               ? absl::OkStatus()
               : absl::InvalidArgumentError("at most 2 ranks");
  }

  capstan::StrategyPlan Plan(
      const capstan::StrategyRequest& request) const override {
    capstan::StrategyPlan plan = ReplicatedStrategy::Plan(request);
    plan.sent_for_parameters = std::exchange(plan.sent_for_gradients, 0);
    return plan;
  }

  bool local_steps() const override { return true; }
  absl::optional<capstan::OwnCurve> own_curve() const override {
    return capstan::OwnCurve{0.2, "ranks synchronise every 2 steps"};
  }

  absl::Status Setup(const capstan::StrategyContext& context) override {
    constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();
    const absl::Status status = SetUp(context, kOneBucket, kOneBucket, nullptr);
    if (!status.ok()) return status;
    shared_ = shard().master.clone();
    told_ = Is(Config::SHARED_NOT_RESTORED) ? shared_.clone() : shared_;
    momentum_ = at::zeros_like(shared_);
    return absl::OkStatus();
  }

  void Reduce() override {
    if (!gradients().buckets().empty()) gradients().Take(0);
    if (Is(Config::SUMS_GRADIENTS)) group().AllReduce(shard().gradient)->Wait();
  }
  at::Tensor GradientSquaredSum() override {
    return capstan::SquaredSum(shard().gradient, 0, shard().gradient.numel());
  }

  void PublishParameters(capstan::PublishCause cause) override {
    const at::NoGradGuard no_grad;
    if (cause != capstan::PublishCause::kRestored ||
        !Is(Config::REPLICA_FORGOTTEN)) {
      return;
    }
    shard().master.copy_(shared_);
    CopyToWorking();
  }

  at::Tensor SharedMaster(int) override {
    return exporting_ ? shard().master : told_;
  }
  std::vector<std::string> state_names() const override { return {"momentum"}; }
  std::vector<at::Tensor> ShardState(int) override { return {momentum_}; }

  void UseSharedModel(bool use) override {
    if (Is(Config::USE_WITHOUT_EFFECT)) return;
    const at::NoGradGuard no_grad;
    if (use) {
      replica_ = shard().master.clone();
      shard().master.copy_(shared_);
    } else if (!Is(Config::STAYS_SHARED)) {
      shard().master.copy_(replica_);
    }
    CopyToWorking();
  }

  void EndStep(int64_t step) override {
    if (step % kEvery == 0 && !Is(Config::NEVER_SYNCHRONISES)) Synchronise();
  }
  void BeforeExport() override {
    if (Is(Config::EXPORTS_NOTHING_NEW)) return;
    double apart[] = {shard().master.equal(shared_) ? 0.0 : 1.0};
    group().AllReduceHost(absl::MakeSpan(apart));
    if (apart[0] > 0.0 || Is(Config::EXPORTS_TWICE)) Synchronise();
  }

  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override {
    exporting_ = Is(Config::EXPORTS_A_REPLICA);
    const absl::Status status = ReplicatedStrategy::ForEachFullParameter(fn);
    exporting_ = false;
    return status;
  }

 private:
  explicit BrokenLocal(Config::Bug bug) : bug_(bug) {}

  bool Is(Config::Bug bug) const { return bug_ == bug; }

  void Synchronise() {
    const at::NoGradGuard no_grad;
    at::Tensor change = shared_ - shard().master;
    group().AllReduce(change)->Wait();
    change.div_(group().size());
    momentum_.mul_(kMomentum).add_(change);
    shared_.sub_(change.add_(momentum_, kMomentum), kRate);
    if (Is(Config::RANKS_DRIFT)) shared_.mul_(1.0 + 1e-6 * group().rank());
    if (Is(Config::SHARED_NOT_RESTORED)) told_.copy_(shared_);
    shard().master.copy_(shared_);
    if (!Is(Config::STALE_WORKING_COPY)) CopyToWorking();
  }

  void CopyToWorking() {
    if (shard().working.defined()) shard().working.copy_(shard().master);
  }

  const Config::Bug bug_;
  at::Tensor shared_;
  at::Tensor told_;  // what SharedMaster returns
  at::Tensor momentum_;
  at::Tensor replica_;  // while the shared model is in use
  bool exporting_ = false;
};

CAPSTAN_PLUGIN(Strategy, BrokenLocal, acme::broken_local::Config,
               "local steps with a bug of one's choice");

}  // namespace
}  // namespace acme::broken_local
