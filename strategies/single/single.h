// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_SINGLE_SINGLE_H_
#define CAPSTAN_STRATEGIES_SINGLE_SINGLE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "strategies/common/replicated.h"
#include "strategies/single/single.pb.h"

namespace capstan {
namespace single {

// One rank, no communication: the reference for all other strategies.
class Single final : public ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<Single>> Create(const Config& config);

  absl::Status Check(const StrategyRequest& request) const override;
  absl::Status Setup(const StrategyContext& context) override;
  void FinishBackward() override;
};

}  // namespace single
}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_SINGLE_SINGLE_H_
