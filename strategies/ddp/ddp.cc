// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/collective_label.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/plugin.h"
#include "strategies/common/bucket_size.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/replicated.h"
#include "strategies/ddp/ddp.pb.h"

namespace capstan::ddp {
namespace {

constexpr int64_t kDefaultFirstBytes = 1 << 20;
constexpr int64_t kLeastBytes = int64_t{25} << 20;  // PyTorch's

int64_t Bytes(double mib, int64_t default_bytes) {
  // An exabyte holds any model; larger values would overflow.
  constexpr double kMost = 1e12;
  return mib == 0.0 ? default_bytes
                    : static_cast<int64_t>(std::min(mib, kMost) * (1 << 20));
}

int64_t DefaultBytes(const StrategyContext& context) {
  const auto element =
      static_cast<int64_t>(c10::elementSize(context.precision.reduce));
  return element *
         DefaultBucket(context.group->device().is_cuda(), context.group->size(),
                       context.model->parameters(), kLeastBytes / element);
}

// Data parallelism (Li et al., "PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training", VLDB 2020, section 3): buckets in
// reverse order of use, all-reduced as soon as they are complete, on the last
// micro-step only.
class Ddp final : public ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<Ddp>> Create(const Config& config) {
    for (const auto& [field, mib] :
         {std::make_pair("bucket_cap_mib", config.bucket_cap_mib()),
          std::make_pair("first_bucket_mib", config.first_bucket_mib())}) {
      CAPSTAN_RETURN_IF_ERROR(CheckField(std::isfinite(mib) && mib >= 0.0,
                                         field, "a size, or 0 for the default",
                                         mib));
    }
    return std::unique_ptr<Ddp>(new Ddp(config));
  }

  absl::Status Check(const StrategyRequest& request) const override {
    return CheckPrecision(request.precision);
  }

  absl::Status Setup(const StrategyContext& context) override {
    return SetUp(context, Bytes(config_.first_bucket_mib(), kDefaultFirstBytes),
                 Bytes(config_.bucket_cap_mib(), DefaultBytes(context)),
                 [this](int bucket) {
                   const CollectiveLabel label("bucket", bucket);
                   works_.push_back(group().AllReduce(TakeSums(bucket)));
                 });
  }

  void Reduce() override {
    for (const std::unique_ptr<Work>& work : works_) work->Wait();
    works_.clear();
  }

 private:
  explicit Ddp(const Config& config) : config_(config) {}

  const Config config_;
  std::vector<std::unique_ptr<Work>> works_;
};

}  // namespace

CAPSTAN_PLUGIN(Strategy, Ddp, capstan::ddp::Config,
               "data parallel: the model on each rank, bucketed all-reduce "
               "overlapped with backward");

}  // namespace capstan::ddp
