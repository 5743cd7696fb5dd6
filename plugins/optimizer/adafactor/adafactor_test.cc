// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "base/status.h"
#include "plugins/optimizer/adafactor/adafactor.pb.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin_for_test.h"

namespace capstan::adafactor {
namespace {

// The field that Create blames, "" if none.
std::string Blamed(const Config& config) {
  return FieldOf(MakePlugin<Optimizer>(config).status()).value_or("");
}

TEST(AdafactorPluginTest, BadSettingsNameTheirField) {
  Config config;
  EXPECT_EQ(Blamed(config), "learning_rate");
  config.set_warmup_init(true);
  config.set_learning_rate(1e-3);
  EXPECT_EQ(Blamed(config), "warmup_init");
  config.set_relative_step(true);
  EXPECT_EQ(Blamed(config), "learning_rate");
  config.clear_learning_rate();
  EXPECT_EQ(Blamed(config), "");
  config.set_clip_threshold(0.0);
  EXPECT_EQ(Blamed(config), "clip_threshold");
  config.set_clip_threshold(1.0);
  config.set_decay_rate(0.8);
  EXPECT_EQ(Blamed(config), "decay_rate");
  config.set_decay_rate(-0.8);
  config.set_beta1(1.0);
  EXPECT_EQ(Blamed(config), "beta1");
  config.set_beta1(0.0);
  config.set_weight_decay(-1.0);
  EXPECT_EQ(Blamed(config), "weight_decay");
  config.set_weight_decay(std::nan(""));
  EXPECT_EQ(Blamed(config), "weight_decay");
  config.set_weight_decay(0.0);
  config.set_epsilon1(0.0);
  EXPECT_EQ(Blamed(config), "epsilon1");
  config.set_epsilon1(1e-30);
  config.set_epsilon2(-1.0);
  EXPECT_EQ(Blamed(config), "epsilon2");
  config.set_epsilon2(0.0);
  EXPECT_EQ(Blamed(config), "");
}

TEST(AdafactorPluginTest, AMatrixHasARowAndAColumn) {
  Config config;
  config.set_relative_step(true);
  const auto made = MakePlugin<Optimizer>(config);
  ASSERT_TRUE(made.ok());
  const Optimizer& optimizer = **made;
  EXPECT_EQ(optimizer.learning_rate(), 1.0);
  EXPECT_EQ(optimizer.state_names().size(), 3u);
  ParameterSpec matrix, vector, stack;
  matrix.shape = {30, 7};
  vector.shape = {30};
  stack.shape = {4, 30, 7};
  EXPECT_EQ(optimizer.StateNumel(matrix, 0), 30);
  EXPECT_EQ(optimizer.StateNumel(matrix, 1), 7);
  EXPECT_EQ(optimizer.StateNumel(matrix, 2), 0);
  EXPECT_EQ(optimizer.StateNumel(stack, 0), 120);
  EXPECT_EQ(optimizer.StateNumel(stack, 1), 28);
  EXPECT_EQ(optimizer.StateNumel(vector, 0), 0);
  EXPECT_EQ(optimizer.StateNumel(vector, 1), 0);
  EXPECT_EQ(optimizer.StateNumel(vector, 2), Optimizer::kByRange);
}

}  // namespace
}  // namespace capstan::adafactor
