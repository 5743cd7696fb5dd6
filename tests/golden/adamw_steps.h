// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTS_GOLDEN_ADAMW_STEPS_H_
#define CAPSTAN_TESTS_GOLDEN_ADAMW_STEPS_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "plugins/optimizer/adamw/adamw.pb.h"
#include "plugins/sdk/optimizer.h"
#include "plugins/sdk/plugin_for_test.h"

namespace capstan {

// AdamW's steps of parameters, each a shard of its own.
class AdamWSteps {
 public:
  AdamWSteps(const adamw::Config& config, std::vector<at::Tensor> parameters)
      : parameters_(std::move(parameters)),
        shards_(parameters_.size()),
        states_(parameters_.size()) {
    auto optimizer = MakePlugin<Optimizer>(config);
    EXPECT_TRUE(optimizer.ok()) << optimizer.status();
    optimizer_ = *std::move(optimizer);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      shards_[i].master = parameters_[i].detach().view({-1});  // same memory
      for (size_t s = 0; s < optimizer_->state_names().size(); ++s) {
        states_[i].push_back(at::zeros_like(shards_[i].master));
      }
    }
    step_.learning_rate = optimizer_->learning_rate();
    step_.step = 0;
  }
  // As a golden file has it: "lr", "weight_decay", "betas" unless they are
  // 0.9 and 0.999.
  AdamWSteps(const nlohmann::json& golden, std::vector<at::Tensor> parameters)
      : AdamWSteps(ConfigOf(golden), std::move(parameters)) {}

  // By the parameters' gradients, whose norm is clipped to `clip` if it is
  // greater; without a gradient it is 0.
  void Step(const std::vector<ParameterSpec>& specs, double norm, double clip) {
    step_.gradient_scale = std::min(1.0, clip / (norm + 1e-6));
    Step(specs);
  }
  void Step(const std::vector<ParameterSpec>& specs) {
    ++step_.step;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      shards_[i].gradient = gradient.defined()
                                ? gradient.reshape({-1})
                                : at::zeros_like(shards_[i].master);
      optimizer_->Update(step_, specs, shards_[i], absl::MakeSpan(states_[i]));
    }
  }

 private:
  static adamw::Config ConfigOf(const nlohmann::json& golden) {
    adamw::Config config;
    config.set_learning_rate(golden["lr"]);
    config.set_weight_decay(golden["weight_decay"]);
    if (golden.contains("betas")) {
      config.set_beta1(golden["betas"][0]);
      config.set_beta2(golden["betas"][1]);
    }
    return config;
  }

  const std::vector<at::Tensor> parameters_;
  std::vector<OptimizerShard> shards_;
  std::vector<std::vector<at::Tensor>> states_;
  std::unique_ptr<Optimizer> optimizer_;
  OptimizerStep step_;
};

}  // namespace capstan

#endif  // CAPSTAN_TESTS_GOLDEN_ADAMW_STEPS_H_
