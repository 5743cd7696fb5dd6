// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "plugins/sdk/idle_for_test.h"
#include "trainer/plugin_host/plugin_host.h"

namespace capstan {
namespace {

// Plans for an optimizer that updates `elements` on each rank.
class PlannedStrategy final : public IdleStrategy {
 public:
  explicit PlannedStrategy(int64_t elements) : elements_(elements) {}
  StrategyPlan Plan(const StrategyRequest&) const override {
    StrategyPlan plan;
    plan.optimizer_elements = elements_;
    return plan;
  }

 private:
  const int64_t elements_;
};

// What Check of a minor 1 strategy says on `world_size` ranks.
std::string Checked(const Optimizer* optimizer, int64_t elements,
                    int world_size) {
  const IdleModel model({{"v", {8}, 0}, {"w", {4, 8}, 0}}, 1);
  const std::unique_ptr<Strategy> strategy(static_cast<Strategy*>(
      AdaptOlderPlugin(PluginCategory::kStrategy, 1,
                       static_cast<Strategy*>(new PlannedStrategy(elements)))));
  StrategyRequest request;
  request.model = &model;
  request.world_size = world_size;
  request.optimizer = optimizer;
  return std::string(strategy->Check(request).message());
}

TEST(OlderPluginsTest, AShardingStrategyRefusesWholeMatrices) {
  const IdleMatrixOptimizer matrices;
  EXPECT_EQ(Checked(&matrices, 20, 2),
            "the optimizer needs 'w' whole, and the strategy, built for an "
            "older plugin API, may cut it: choose another strategy, or an "
            "optimizer that doesn't need whole matrices");
  EXPECT_EQ(Checked(&matrices, 40, 2), "");  // each rank updates all
  EXPECT_EQ(Checked(&matrices, 20, 1), "");
  EXPECT_EQ(Checked(nullptr, 20, 2), "");
}

}  // namespace
}  // namespace capstan
