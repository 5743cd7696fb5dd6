// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_DDP_DDP_H_
#define CAPSTAN_STRATEGIES_DDP_DDP_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "strategies/common/replicated.h"
#include "strategies/ddp/ddp.pb.h"

namespace capstan {
namespace ddp {

// Data parallelism (Li et al., "PyTorch Distributed: Experiences on
// Accelerating Data Parallel Training", VLDB 2020, section 3): buckets in
// reverse order of use, all-reduced as soon as they are complete, on the last
// micro-step only.
class Ddp final : public ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<Ddp>> Create(const Config& config);

  absl::Status Check(const StrategyRequest& request) const override;
  absl::Status Setup(const StrategyContext& context) override;
  void FinishBackward() override;

 private:
  explicit Ddp(const Config& config) : config_(config) {}

  const Config config_;
  std::vector<std::unique_ptr<Work>> works_;
};

}  // namespace ddp
}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_DDP_DDP_H_
