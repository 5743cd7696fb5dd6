// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/replicated.h"
#include "strategies/single/single.pb.h"

namespace capstan::single {
namespace {

// One rank, no communication: the reference for all other strategies.
class Single final : public ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<Single>> Create(const Config&) {
    return std::make_unique<Single>();
  }

  absl::Status Check(const StrategyRequest& request) const override {
    if (request.world_size == 1) return CheckPrecision(request.precision);
    return absl::InvalidArgumentError(absl::StrCat(
        "capstan.single runs on one rank, this run has ", request.world_size,
        ": set launch { processes: 1 } or another strategy, e.g. "
        "capstan.ddp"));
  }

  absl::Status Setup(const StrategyContext& context) override {
    constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();
    return SetUp(context, kOneBucket, kOneBucket, nullptr);
  }

  void Reduce() override {
    if (!gradients().buckets().empty()) gradients().Take(0);
  }
};

}  // namespace

CAPSTAN_PLUGIN(Strategy, Single, capstan::single::Config,
               "one rank, no communication");

}  // namespace capstan::single
