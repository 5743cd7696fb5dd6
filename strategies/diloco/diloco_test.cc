// SPDX-License-Identifier: Apache-2.0
//
// Settings and the outer step: tests/conformance trains with it,
// tests/end_to_end resumes.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <string>

#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/strategy.h"
#include "strategies/diloco/diloco.pb.h"

namespace capstan::diloco {
namespace {

std::string FieldOf(const Config& config) {
  const absl::optional<std::string> field =
      capstan::FieldOf(MakePlugin<Strategy>(config).status());
  return field.value_or("none");
}

TEST(DiLoCoTest, DefaultsAreThePapers) {
  const auto diloco = MakePlugin<Strategy>(Config());
  ASSERT_TRUE(diloco.ok()) << diloco.status();
  EXPECT_TRUE((*diloco)->local_steps());
  const absl::optional<OwnCurve> curve = (*diloco)->own_curve();
  ASSERT_TRUE(curve.has_value());
  EXPECT_EQ(curve->why, "ranks synchronise every 500 steps");
  EXPECT_EQ(curve->loss, 0.1);
}

TEST(DiLoCoTest, WrongSettingsNameTheirField) {
  Config config;
  config.set_local_steps(-1);
  EXPECT_EQ(FieldOf(config), "local_steps");
  config.set_local_steps(2);
  config.set_outer_learning_rate(0.0);
  EXPECT_EQ(FieldOf(config), "outer_learning_rate");
  config.set_outer_learning_rate(1.0);
  config.set_outer_momentum(1.0);
  EXPECT_EQ(FieldOf(config), "outer_momentum");
  config.set_outer_momentum(0.0);
  config.set_loss_bound(-0.1);
  EXPECT_EQ(FieldOf(config), "loss_bound");
  config.set_loss_bound(0.0);
  EXPECT_EQ(FieldOf(config), "none");
}

// Two outer steps of one rank, as torch.optim.SGD(lr=0.7, momentum=0.9,
// nesterov=True) takes them: b = 0.9 b + g; x -= 0.7 (g + 0.9 b).
TEST(DiLoCoTest, TheOuterOptimizerIsNesterovs) {
  Config config;
  config.set_local_steps(2);
  auto diloco = MakePlugin<Strategy>(config);
  ASSERT_TRUE(diloco.ok()) << diloco.status();
  IdleModel model({{"a", {3}}}, 1);
  IdleGroup group(0, 1);
  StrategyContext context;
  context.model = &model;
  context.group = &group;
  ASSERT_TRUE((*diloco)->Setup(context).ok());
  OptimizerShard& shard = (*diloco)->OptimizerShards()[0];
  const at::Tensor shared = (*diloco)->SharedMaster(0);
  shared.fill_(1.0);
  shard.master.fill_(1.0);
  double x = 1.0, b = 0.0;
  for (int step = 1; step <= 4; ++step) {
    shard.master.sub_(0.125);
    (*diloco)->EndStep(step);
    if (step % 2 == 1) {
      EXPECT_NEAR(shared[0].item<double>(), x, 1e-6);
      (*diloco)->UseSharedModel(true);
      EXPECT_NEAR(shard.master[0].item<double>(), x, 1e-6);
      (*diloco)->UseSharedModel(false);
      EXPECT_NEAR(shard.master[0].item<double>(), x - 0.125, 1e-6);
      continue;
    }
    const double g = 0.25;
    b = 0.9 * b + g;
    x -= 0.7 * (g + 0.9 * b);
    EXPECT_NEAR(shared[0].item<double>(), x, 1e-6);
    EXPECT_TRUE(shard.master.equal(shared));
  }
  // Nothing is left.
  (*diloco)->BeforeExport();
  EXPECT_NEAR(shared[0].item<double>(), x, 1e-6);
  shard.master.sub_(0.5);
  (*diloco)->BeforeExport();
  b = 0.9 * b + 0.5;
  x -= 0.7 * (0.5 + 0.9 * b);
  EXPECT_NEAR(shared[0].item<double>(), x, 1e-6);
}

}  // namespace
}  // namespace capstan::diloco
