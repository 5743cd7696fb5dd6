// SPDX-License-Identifier: Apache-2.0
#include "strategies/ddp/ddp.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/squared_sum.h"

namespace capstan {
namespace ddp {
namespace {

constexpr double kDefaultCapMib = 25.0;
constexpr double kDefaultFirstMib = 1.0;

absl::Status CheckSize(const char* field, double mib) {
  if (std::isfinite(mib) && mib >= 0.0) return absl::OkStatus();
  return FieldError(field, absl::StrCat("must be greater than 0, is ", mib));
}

int64_t Bytes(double mib, double default_mib) {
  return static_cast<int64_t>((mib == 0.0 ? default_mib : mib) * (1 << 20));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Ddp>> Ddp::Create(const Config& config) {
  CAPSTAN_RETURN_IF_ERROR(CheckSize("bucket_cap_mib", config.bucket_cap_mib()));
  CAPSTAN_RETURN_IF_ERROR(
      CheckSize("first_bucket_mib", config.first_bucket_mib()));
  return std::unique_ptr<Ddp>(new Ddp(config));
}

absl::Status Ddp::Check(const StrategyRequest& request) const {
  return CheckPrecision(request.precision);
}

StrategyPlan Ddp::Plan(const StrategyRequest& request) const {
  return ReplicatedState::Plan(request);
}

absl::Status Ddp::Setup(const StrategyContext& context) {
  group_ = context.group;
  CAPSTAN_RETURN_IF_ERROR(state_.Setup(context));
  GradientBuckets::Options options;
  options.dtype = context.precision.reduce;
  options.flat = state_.shard().gradient;
  options.model = context.model;
  options.on_ready = [this](int bucket) {
    works_.push_back(group_->AllReduce(gradients_->Take(bucket)));
  };
  const int64_t bytes = options.flat.element_size();
  std::vector<Bucket> buckets =
      CutBuckets(state_.layout(),
                 Bytes(config_.first_bucket_mib(), kDefaultFirstMib) / bytes,
                 Bytes(config_.bucket_cap_mib(), kDefaultCapMib) / bytes);
  gradients_ = std::make_unique<GradientBuckets>(
      context.model->parameters(), state_.layout(), std::move(buckets),
      state_.parameters(), std::move(options));
  return absl::OkStatus();
}

absl::Span<OptimizerShard> Ddp::OptimizerShards() {
  return absl::MakeSpan(&state_.shard(), 1);
}

void Ddp::BeginMicroStep(int index, int count) {
  gradients_->Begin(/*first=*/index == 0, /*last=*/index + 1 == count);
}

void Ddp::FinishBackward() {
  gradients_->Finish();
  for (const std::unique_ptr<Work>& work : works_) work->Wait();
  works_.clear();
}

at::Tensor Ddp::GradientSquaredSum() {
  // Ranks hold the same sums: each takes its share of the work.
  const auto [begin, end] =
      RankSlice(state_.layout().numel, group_->rank(), group_->size());
  return SquaredSum(state_.shard().gradient, begin, end);
}

std::vector<OwnedSlice> Ddp::OwnedSlices() const {
  const auto [begin, end] =
      RankSlice(state_.layout().numel, group_->rank(), group_->size());
  return {{0, begin, end}};
}

absl::Status Ddp::ForEachFullParameter(
    const std::function<absl::Status(int, const at::Tensor&)>& fn) {
  return state_.ForEachFullParameter(fn);
}

CAPSTAN_PLUGIN(Strategy, Ddp, capstan::ddp::Config,
               "data parallel: the model on each rank, bucketed all-reduce "
               "overlapped with backward");

}  // namespace ddp
}  // namespace capstan
