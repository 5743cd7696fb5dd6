// SPDX-License-Identifier: Apache-2.0
//
// Shared by the objective's tests.
#ifndef CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_OBJECTIVE_FIXTURE_H_
#define CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_OBJECTIVE_FIXTURE_H_

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "plugins/llada/masked_diffusion/fake_model.h"
#include "plugins/llada/masked_diffusion/masked_diffusion.h"

namespace capstan::masked_diffusion {

inline std::vector<int64_t> Values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kLong).contiguous();
  const int64_t* const values = flat.const_data_ptr<int64_t>();
  return std::vector<int64_t>(values, values + flat.numel());
}

inline at::Tensor Row(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong).view({1, -1});
}

// Rows of `length` tokens for samples [begin, begin + count).
inline Batch Rows(int64_t begin, int64_t count, int64_t length) {
  return {{"input_ids",
           (at::arange(count * length, at::kLong) % 7).view({count, length})},
          {"sample_position", at::arange(begin, begin + count, at::kLong)}};
}

class MaskedDiffusionTest : public testing::Test {
 protected:
  void SetUp() override {
    info_.training = true;
    info_.seed = 3;
    SetConfig(Config::PRETRAIN, 0.0);
  }
  void SetConfig(Config::Loss loss, double random_length_ratio) {
    Config config;
    config.set_loss(loss);
    config.set_random_length_ratio(random_length_ratio);
    SetConfig(config);
  }
  void SetConfig(const Config& config) {
    auto made = MaskedDiffusion::Create(config);
    ASSERT_TRUE(made.ok()) << made.status();
    objective_ = *std::move(made);
  }
  LossSum Compute(const Batch& batch) {
    const LossSum loss = objective_->Compute(model_, batch, info_, runner_);
    EXPECT_EQ(objective_->CountTargets(batch, info_), loss.count);
    return loss;
  }
  // The masked positions of a batch: [B, T] bool.
  at::Tensor Hidden(const Batch& batch) {
    Compute(batch);
    return targets().tokens.ge(0);
  }
  const TokenInput& input() const { return model_.inputs.back(); }
  const TokenTargets& targets() const { return model_.targets.back(); }

  FakeModel model_;
  PlainRunner runner_;
  StepInfo info_;
  std::unique_ptr<MaskedDiffusion> objective_;
};

}  // namespace capstan::masked_diffusion

#endif  // CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_OBJECTIVE_FIXTURE_H_
