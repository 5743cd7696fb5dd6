// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/status.h"
#include "plugins/optimizer/sgd/sgd.pb.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin_for_test.h"

namespace capstan::sgd {
namespace {

Config MakeConfig(double momentum, double decay, bool nesterov) {
  Config config;
  config.set_learning_rate(0.1);
  config.set_momentum(momentum);
  config.set_weight_decay(decay);
  config.set_nesterov(nesterov);
  return config;
}

// Three steps against the formula in double precision.
void Check(double momentum, double decay, bool nesterov) {
  const Config config = MakeConfig(momentum, decay, nesterov);
  auto sgd = std::move(*MakePlugin<Optimizer>(config));
  constexpr int kSize = 37;
  OptimizerShard shard;
  shard.master = at::arange(kSize, at::kFloat);
  shard.gradient = at::zeros_like(shard.master);
  shard.working = shard.master.to(at::kBFloat16);
  std::vector<at::Tensor> state;
  for (size_t i = 0; i < sgd->state_names().size(); ++i) {
    state.push_back(at::zeros_like(shard.master));
  }
  std::vector<double> p(kSize), b(kSize, 0.0);
  for (int i = 0; i < kSize; ++i) p[i] = i;
  for (int t = 1; t <= 3; ++t) {
    OptimizerStep step;
    step.step = t;
    step.learning_rate = 0.1 / t;
    step.gradient_scale = 0.5;
    for (int i = 0; i < kSize; ++i) {
      const double raw = std::sin(i + t);
      shard.gradient.data_ptr<float>()[i] = static_cast<float>(raw);
      double g = 0.5 * raw + decay * p[i];
      b[i] = momentum * b[i] + g;
      if (momentum != 0) g = nesterov ? g + momentum * b[i] : b[i];
      p[i] -= step.learning_rate * g;
    }
    sgd->Update(step, {}, shard, absl::MakeSpan(state));
    for (int i = 0; i < kSize; ++i) {
      EXPECT_NEAR(shard.master.data_ptr<float>()[i], p[i], 1e-5);
    }
    EXPECT_TRUE(at::equal(shard.working, shard.master.to(at::kBFloat16)));
  }
}

TEST(SgdTest, Plain) { Check(0.0, 0.0, false); }
TEST(SgdTest, MomentumAndDecay) { Check(0.9, 0.01, false); }
TEST(SgdTest, Nesterov) { Check(0.9, 0.01, true); }

// Same bits as gradient_scale; if not finite, nothing changes.
void CheckDeviceScale(double momentum, bool nesterov) {
  auto sgd =
      std::move(*MakePlugin<Optimizer>(MakeConfig(momentum, 0.01, nesterov)));
  const auto run = [&sgd](bool on_device, OptimizerShard* shard,
                          std::vector<at::Tensor>* state) {
    shard->master = at::arange(37, at::kFloat) + 0.3;
    shard->working = shard->master.to(at::kBFloat16);
    for (size_t i = 0; i < sgd->state_names().size(); ++i) {
      state->push_back(at::zeros_like(shard->master));
    }
    for (const float scale : {0.7f, INFINITY, NAN, 1.3f}) {
      if (!on_device && !std::isfinite(scale)) continue;
      OptimizerStep step;
      step.learning_rate = 0.1;
      shard->gradient = at::arange(37, at::kFloat).sin();
      if (on_device) {
        step.device_scale = at::scalar_tensor(scale, at::kFloat);
      } else {
        step.gradient_scale = scale;
      }
      // As a step that isn't finite has it.
      if (!std::isfinite(scale)) shard->gradient[5] = scale;
      sgd->Update(step, {}, *shard, absl::MakeSpan(*state));
    }
  };
  OptimizerShard host, device;
  std::vector<at::Tensor> host_state, device_state;
  run(false, &host, &host_state);
  run(true, &device, &device_state);
  EXPECT_TRUE(at::equal(device.master, host.master));
  EXPECT_TRUE(at::equal(device.working, host.working));
  ASSERT_EQ(device_state.size(), host_state.size());
  for (size_t i = 0; i < host_state.size(); ++i) {
    EXPECT_TRUE(at::equal(device_state[i], host_state[i]));
  }
}

TEST(SgdTest, DeviceScale) {
  CheckDeviceScale(0.0, false);
  CheckDeviceScale(0.9, false);
  CheckDeviceScale(0.9, true);
}

TEST(SgdTest, BadSettingsNameTheirField) {
  EXPECT_EQ(FieldOf(MakePlugin<Optimizer>(Config()).status()), "learning_rate");
  EXPECT_EQ(FieldOf(MakePlugin<Optimizer>(MakeConfig(1.0, 0, false)).status()),
            "momentum");
  EXPECT_EQ(FieldOf(MakePlugin<Optimizer>(MakeConfig(0.9, -1, false)).status()),
            "weight_decay");
  EXPECT_EQ(FieldOf(MakePlugin<Optimizer>(MakeConfig(0, 0, true)).status()),
            "nesterov");
}

}  // namespace
}  // namespace capstan::sgd
