// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/random.h"
#include "base/status.h"
#include "plugins/optimizer/adamw/adamw.pb.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin_for_test.h"

namespace capstan::adamw {
namespace {

at::Tensor Normal(uint64_t key, int64_t length, float stddev) {
  const at::Tensor t = at::empty({length});
  FillNormal(key, 0, length, 0.0f, stddev, t.mutable_data_ptr<float>());
  return t;
}

Config WithRate(double rate) {
  Config config;
  config.set_learning_rate(rate);
  return config;
}

// The field that Create blames, "" if none.
std::string Blamed(const Config& config) {
  return FieldOf(MakePlugin<Optimizer>(config).status()).value_or("");
}

TEST(AdamWPluginTest, BadSettingsNameTheirField) {
  EXPECT_EQ(Blamed(WithRate(1e-3)), "");
  EXPECT_EQ(Blamed(Config()), "learning_rate");
  EXPECT_EQ(Blamed(WithRate(-1.0)), "learning_rate");
  EXPECT_EQ(Blamed(WithRate(std::numeric_limits<double>::infinity())),
            "learning_rate");
  EXPECT_EQ(Blamed(WithRate(std::nan(""))), "learning_rate");
  Config config = WithRate(1e-3);
  config.set_beta1(1.0);
  EXPECT_EQ(Blamed(config), "beta1");
  config.set_beta1(0.0);
  config.set_beta2(-0.1);
  EXPECT_EQ(Blamed(config), "beta2");
  config.set_beta2(0.0);
  config.set_epsilon(0.0);
  EXPECT_EQ(Blamed(config), "epsilon");
  config.set_epsilon(1e-6);
  config.set_weight_decay(-0.1);
  EXPECT_EQ(Blamed(config), "weight_decay");
  config.set_weight_decay(0.0);
  EXPECT_EQ(Blamed(config), "");
}

TEST(AdamWPluginTest, SaysWhatIsWrong) {
  Config config = WithRate(-0.5);
  EXPECT_NE(MakePlugin<Optimizer>(config).status().message().find(
                "must be greater than 0, is -0.5"),
            absl::string_view::npos);
}

// The formula in double, with torch.optim.AdamW's defaults; the learning rate
// is the schedule's, and the gradient is scaled.
void CheckAgainstDouble(const Config& config, double beta1, double beta2,
                        double epsilon, double decay) {
  constexpr int64_t kLength = 333;
  auto optimizer = MakePlugin<Optimizer>(config);
  ASSERT_TRUE(optimizer.ok());
  ASSERT_EQ((*optimizer)->state_names().size(), 2);
  OptimizerShard shard;
  shard.master = Normal(1, kLength, 0.1f);
  const at::Tensor start = shard.master.to(at::kDouble);
  std::vector<double> p(start.const_data_ptr<double>(),
                        start.const_data_ptr<double>() + kLength);
  std::vector<double> m(kLength);
  std::vector<double> v(kLength);
  std::vector<at::Tensor> state = {at::zeros({kLength}), at::zeros({kLength})};
  for (int64_t t = 1; t <= 4; ++t) {
    shard.gradient = Normal(10 + t, kLength, 3.0f);
    OptimizerStep step;
    step.step = t;
    step.learning_rate = 0.01 * t;
    step.gradient_scale = 1.0 / t;
    (*optimizer)->Update(step, {}, shard, absl::MakeSpan(state));
    for (int64_t i = 0; i < kLength; ++i) {
      const double g =
          shard.gradient.const_data_ptr<float>()[i] * step.gradient_scale;
      p[i] *= 1.0 - step.learning_rate * decay;
      m[i] = beta1 * m[i] + (1.0 - beta1) * g;
      v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
      p[i] -= step.learning_rate * (m[i] / (1.0 - std::pow(beta1, t))) /
              (std::sqrt(v[i] / (1.0 - std::pow(beta2, t))) + epsilon);
    }
  }
  for (int64_t i = 0; i < kLength; ++i) {
    ASSERT_NEAR(shard.master.const_data_ptr<float>()[i], p[i], 3e-7) << i;
  }
}

TEST(AdamWPluginTest, DefaultsAreTorchs) {
  CheckAgainstDouble(WithRate(1.0), 0.9, 0.999, 1e-8, 0.01);
}

TEST(AdamWPluginTest, UsesItsSettings) {
  Config config = WithRate(1.0);
  config.set_beta1(0.5);
  config.set_beta2(0.95);
  config.set_epsilon(0.1);
  config.set_weight_decay(0.0);
  CheckAgainstDouble(config, 0.5, 0.95, 0.1, 0.0);
}

TEST(AdamWPluginTest, WritesTheWorkingCopy) {
  constexpr int64_t kLength = 97;
  auto optimizer = MakePlugin<Optimizer>(WithRate(0.1));
  ASSERT_TRUE(optimizer.ok());
  EXPECT_EQ((*optimizer)->learning_rate(), 0.1);
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    OptimizerShard shard;
    shard.master = Normal(1, kLength, 0.1f);
    shard.gradient = Normal(2, kLength, 1.0f).to(at::kBFloat16);
    shard.working = at::zeros({kLength}, type);
    std::vector<at::Tensor> state = {at::zeros({kLength}),
                                     at::zeros({kLength})};
    OptimizerStep step;
    step.learning_rate = 0.1;
    (*optimizer)->Update(step, {}, shard, absl::MakeSpan(state));
    EXPECT_TRUE(at::equal(shard.working, shard.master.to(type)));
    EXPECT_FALSE(at::equal(shard.master, Normal(1, kLength, 0.1f)));
  }
}

// A scale that the step gets as a tensor; one that isn't finite skips the step.
TEST(AdamWPluginTest, HonoursTheDeviceScale) {
  auto optimizer = MakePlugin<Optimizer>(WithRate(0.1));
  ASSERT_TRUE(optimizer.ok());
  const auto run = [&](double scale, const at::Tensor& device_scale) {
    OptimizerShard shard;
    shard.master = Normal(1, 50, 0.1f);
    shard.gradient = Normal(2, 50, 1.0f);
    std::vector<at::Tensor> state = {at::zeros({50}), at::zeros({50})};
    OptimizerStep step;
    step.learning_rate = 0.1;
    step.gradient_scale = scale;
    step.device_scale = device_scale;
    (*optimizer)->Update(step, {}, shard, absl::MakeSpan(state));
    return std::vector<at::Tensor>{shard.master, state[0], state[1]};
  };
  const auto expected = run(0.125, at::Tensor());
  const auto scaled = run(0.5, at::full({}, 0.25f));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(scaled[i], expected[i]));
  const auto skipped =
      run(0.5, at::full({}, std::numeric_limits<float>::infinity()));
  EXPECT_TRUE(at::equal(skipped[0], Normal(1, 50, 0.1f)));
  EXPECT_TRUE(at::equal(skipped[1], at::zeros({50})));
  EXPECT_TRUE(at::equal(skipped[2], at::zeros({50})));
}

// Padding between parameters holds zeros, and must keep doing so.
TEST(AdamWPluginTest, PaddingStaysZero) {
  auto optimizer = MakePlugin<Optimizer>(WithRate(0.1));
  ASSERT_TRUE(optimizer.ok());
  OptimizerShard shard;
  shard.master = at::zeros({40});
  shard.gradient = at::zeros({40});
  std::vector<at::Tensor> state = {at::zeros({40}), at::zeros({40})};
  OptimizerStep step;
  step.learning_rate = 0.1;
  (*optimizer)->Update(step, {}, shard, absl::MakeSpan(state));
  EXPECT_TRUE(at::equal(shard.master, at::zeros({40})));
}

}  // namespace
}  // namespace capstan::adamw
