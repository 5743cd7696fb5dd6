// SPDX-License-Identifier: Apache-2.0
//
// Without a bug it passes the whole suite, so failures are due to its bugs.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/strategy.h"
#include "tests/conformance/broken/broken_strategy.pb.h"

namespace acme {
namespace broken_strategy {

// Parameters and ranks' slices start at multiples of this, which an optimizer's
// blocks divide.
constexpr int64_t kMultiple = 64;

// A parameter with the padding after it: 3 elements at least.
int64_t Padded(const capstan::ParameterSpec& spec) {
  return (spec.numel() + 3 + kMultiple - 1) / kMultiple * kMultiple;
}

class BrokenStrategy final : public capstan::Strategy {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenStrategy>> Create(
      const Config& config) {
    return std::unique_ptr<BrokenStrategy>(new BrokenStrategy(config.bug()));
  }

  absl::Status Check(const capstan::StrategyRequest& request) const override {
    return request.world_size <= 2
               ? absl::OkStatus()
               : absl::InvalidArgumentError("at most 2 ranks");
  }

  capstan::StrategyPlan Plan(
      const capstan::StrategyRequest& request) const override {
    capstan::StrategyPlan plan;
    for (const auto& spec : request.model->parameters()) {
      if (spec.trainable) plan.optimizer_elements += Padded(spec);
    }
    plan.forward_buckets.resize(request.model->units().size());
    plan.backward_buckets = plan.backward_workspace = plan.forward_buckets;
    plan.sent_for_gradients =
        (request.world_size - 1) * plan.optimizer_elements;
    if (bug_ == Config::WRONG_PLAN) plan.optimizer_elements /= 2;
    return plan;
  }

  absl::Status Setup(const capstan::StrategyContext& context) override {
    context_ = context;
    const auto& specs = context.model->parameters();
    int64_t numel = 0;
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      if (!specs[i].trainable) continue;
      shard_.ranges.push_back({i, 0, specs[i].numel(), numel});
      numel += Padded(specs[i]);
    }
    shard_.master = at::zeros({numel}, context.precision.master);
    shard_.gradient = at::zeros({numel}, context.precision.reduce);
    if (bug_ == Config::DIRTY_PADDING) shard_.master.fill_(1.0);
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      const at::Tensor value = at::zeros(specs[i].shape, at::kFloat);
      if (specs[i].trainable || bug_ != Config::FROZEN_FORGOTTEN) {
        const absl::Status status = context.model->InitialValue(
            i, context.seed, 0, value.numel(), value.mutable_data_ptr<float>());
        if (!status.ok()) return status;
      }
      const int64_t bytes = context.model->PackedBytes(i);
      if (bytes > 0) {
        const at::Tensor packed = at::zeros({bytes}, at::kByte);
        const absl::Status status = context.model->PackedValue(
            i, 0, bytes, packed.mutable_data_ptr<uint8_t>());
        if (!status.ok()) return status;
        parameters_.push_back(packed);
      } else {
        parameters_.push_back(value.to(context.precision.compute).clone());
        parameters_[i].set_requires_grad(specs[i].trainable);
      }
      frozen_.push_back(specs[i].trainable ? at::Tensor() : value);
    }
    for (const auto& r : shard_.ranges) {
      const at::Tensor value =
          shard_.master.narrow(0, r.offset, r.length).fill_(0.0);
      // Not from the working copy, which may be rounded.
      const at::Tensor wide = at::empty({r.length}, at::kFloat);
      const absl::Status status =
          context.model->InitialValue(r.parameter, context.seed, 0, r.length,
                                      wide.mutable_data_ptr<float>());
      if (!status.ok()) return status;
      value.copy_(wide);
    }
    shard_.working = shard_.master.to(context.precision.compute, false, true);
    written_.resize(specs.size());
    diary_ = at::zeros({numel}, at::kFloat);
    context.model->Bind(parameters_);
    return absl::OkStatus();
  }

  absl::Span<capstan::OptimizerShard> OptimizerShards() override {
    return absl::MakeSpan(&shard_, 1);
  }

  // The strategy's own state: for each element the last step begun, in
  // thousands, and its offset in its parameter.
  std::vector<std::string> state_names() const override {
    if (bug_ == Config::FORGETS_STATE) return {};
    return {"diary"};
  }
  std::vector<at::Tensor> ShardState(int) override { return {diary_}; }

  void BeginStep(int64_t step) override {
    if (step > 1 && !diary_.equal(Diary(step - 1)) &&
        !diary_.equal(Diary(step))) {
      throw std::runtime_error("the strategy has lost its state");
    }
    diary_.copy_(Diary(step));
  }

  void BeginMicroStep(int index, int) override {
    at::NoGradGuard no_grad;
    if (index > 0) Collect();
    const bool last_only =
        bug_ == Config::LAST_MICRO_STEP ||
        (bug_ == Config::DETERMINISTIC_LAST && context_.deterministic);
    if (index > 0 && !last_only) return;
    written_.assign(written_.size(), false);
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  }

  void FinishBackward() override {
    at::NoGradGuard no_grad;
    const bool broke_off = Collect() == 0;
    for (const auto& r : shard_.ranges) {
      if (written_[r.parameter] || bug_ == Config::STALE_GRADIENTS) continue;
      Drop(shard_.gradient.narrow(0, r.offset, r.length));
    }
    if (broke_off && bug_ == Config::GIVES_UP) return;
    while (broke_off && bug_ == Config::HANGS) pause();
    Reduce();
    if (bug_ == Config::NAN_HIDDEN) shard_.gradient.nan_to_num_(0, 0, 0);
  }

  at::Tensor GradientSquaredSum() override {
    const capstan::OwnedSlice mine = Share();
    const at::Tensor part =
        bug_ == Config::WHOLE_SQUARED_SUM
            ? shard_.gradient
            : shard_.gradient.narrow(0, mine.begin, mine.end - mine.begin);
    return part.to(at::kDouble).square().sum();
  }

  void PublishParameters(capstan::PublishCause cause) override {
    if (bug_ == Config::ONLY_UPDATES_PUBLISH &&
        cause != capstan::PublishCause::kUpdated) {
      return;
    }
    at::NoGradGuard no_grad;
    at::Tensor next = shard_.working.clone();
    if (bug_ == Config::LATE_PUBLISH && late_.defined()) {
      std::swap(next, late_);
    } else {
      late_ = next.clone();
    }
    for (const auto& r : shard_.ranges) {
      parameters_[r.parameter].view({-1}).copy_(
          next.narrow(0, r.offset, r.length));
    }
    if (bug_ != Config::FROZEN_TOUCHED) return;
    for (const at::Tensor& value : frozen_) {
      if (value.defined()) value.mul_(1.0001);
    }
  }

  void FinishForward() override {
    at::NoGradGuard no_grad;
    if (bug_ == Config::EVALUATION_DISTURBS) parameters_[0].mul_(1.01);
  }

  std::vector<capstan::OwnedSlice> OwnedSlices() const override {
    if (bug_ == Config::ALL_OWNED) return {{0, 0, shard_.master.numel()}};
    return {Share()};
  }

  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override {
    if (context_.group->rank() != 0) return absl::OkStatus();
    const auto& specs = context_.model->parameters();
    for (size_t i = 0; i < specs.size(); ++i) {
      const int index = static_cast<int>(
          bug_ == Config::BACKWARDS ? specs.size() - 1 - i : i);
      at::Tensor value = frozen_[index];
      for (const auto& r : shard_.ranges) {
        if (r.parameter != index) continue;
        value = shard_.master.narrow(0, r.offset, r.length);
      }
      if (bug_ == Config::MAKES_NAN) {
        value = value.clone();
        value.view({-1})[value.numel() - 1].fill_(NAN);
      }
      const absl::Status status = fn(index, value.view(specs[index].shape));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  explicit BrokenStrategy(Config::Bug bug) : bug_(bug) {}

  void Drop(const at::Tensor& gradient) const {
    if (bug_ == Config::ZERO_BY_MULTIPLYING) {
      gradient.mul_(0.0);
    } else {
      gradient.zero_();
    }
  }

  // Takes over autograd's gradients; returns the number of parameters with one.
  int Collect() {
    int count = 0;
    for (const auto& r : shard_.ranges) {
      at::Tensor& grad = parameters_[r.parameter].mutable_grad();
      if (!grad.defined()) continue;
      const at::Tensor sum = shard_.gradient.narrow(0, r.offset, r.length);
      if (!written_[r.parameter]) Drop(sum);
      sum.add_(grad.view({-1}));
      written_[r.parameter] = true;
      grad.reset();
      ++count;
    }
    return count;
  }

  at::Tensor Diary(int64_t step) const {
    const at::Tensor diary = at::zeros_like(diary_);
    for (const auto& r : shard_.ranges) {
      diary.narrow(0, r.offset, r.length)
          .copy_(at::arange(r.length, at::kFloat) + 1000.0 * step);
    }
    return diary;
  }

  void Reduce() {
    const int64_t numel = shard_.gradient.numel();
    at::Tensor summed = shard_.gradient;
    if (bug_ == Config::HALF_REDUCED) summed = summed.narrow(0, 0, numel / 2);
    if (bug_ == Config::NARROW_SUMS) {
      summed = summed.to(context_.precision.compute);
    }
    context_.group->AllReduce(summed)->Wait();
    if (bug_ == Config::NARROW_SUMS) shard_.gradient.copy_(summed);
    if (bug_ == Config::MEAN) shard_.gradient.div_(context_.group->size());
  }

  capstan::OwnedSlice Share() const {
    const int64_t numel = shard_.master.numel();
    const int64_t rank = context_.group->rank();
    const int64_t size = context_.group->size();
    const auto cut = [&](int64_t part) {
      return part == size ? numel : numel * part / size / kMultiple * kMultiple;
    };
    return {0, cut(rank), cut(rank + 1)};
  }

  const Config::Bug bug_;
  capstan::StrategyContext context_;
  capstan::OptimizerShard shard_;
  std::vector<at::Tensor> parameters_;  // as bound, one a spec
  std::vector<at::Tensor> frozen_;      // undefined for the trainable
  std::vector<bool> written_;           // has a gradient of this step
  at::Tensor late_;
  at::Tensor diary_;
};

CAPSTAN_PLUGIN(Strategy, BrokenStrategy, acme::broken_strategy::Config,
               "data parallelism with a bug of one's choice");

}  // namespace broken_strategy
}  // namespace acme
