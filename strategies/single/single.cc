// SPDX-License-Identifier: Apache-2.0
#include "strategies/single/single.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"

namespace capstan {
namespace single {

absl::StatusOr<std::unique_ptr<Single>> Single::Create(const Config&) {
  return std::make_unique<Single>();
}

absl::Status Single::Check(const StrategyRequest& request) const {
  if (request.world_size == 1) return CheckPrecision(request.precision);
  return absl::InvalidArgumentError(absl::StrCat(
      "capstan.single runs on one rank, this run has ", request.world_size,
      ": set launch { processes: 1 } or another strategy, e.g. "
      "capstan.ddp"));
}

absl::Status Single::Setup(const StrategyContext& context) {
  constexpr int64_t kOneBucket = std::numeric_limits<int64_t>::max();
  return SetUp(context, kOneBucket, kOneBucket, nullptr);
}

void Single::FinishBackward() {
  if (!gradients().buckets().empty()) gradients().Take(0);
}

CAPSTAN_PLUGIN(Strategy, Single, capstan::single::Config,
               "one rank, no communication");

}  // namespace single
}  // namespace capstan
