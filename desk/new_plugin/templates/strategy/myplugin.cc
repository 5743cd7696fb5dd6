// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/replicated.h"

namespace myvendor::myplugin {

// Data parallelism at its simplest: the whole model on each rank, and one
// all-reduce of all gradients after backward. What a strategy has to keep is
// said in plugins/sdk/strategy.h; strategies/common has the parts of it that
// most of them share.
class MyPlugin final : public capstan::ReplicatedStrategy {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(const Config &) {
    return std::make_unique<MyPlugin>();
  }

  absl::Status Check(const capstan::StrategyRequest &request) const override {
    return capstan::CheckPrecision(request.precision);
  }

  absl::Status Setup(const capstan::StrategyContext &context) override {
    constexpr int64_t kAll = int64_t{1} << 60;  // bytes: one bucket for all
    return SetUp(context, kAll, kAll, /*on_ready=*/nullptr);
  }

  void Reduce() override {
    if (gradients().buckets().empty()) return;  // nothing is trainable
    group().AllReduce(TakeSums(0))->Wait();
  }
};

CAPSTAN_PLUGIN(Strategy, MyPlugin, myvendor::myplugin::Config,
               "data parallel: one all-reduce after backward");

}  // namespace myvendor::myplugin
