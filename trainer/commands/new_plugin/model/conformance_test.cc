// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "plugins/sdk/model.h"
#include "tests/conformance/plugin_under_test.h"

namespace {

// Loads the library as the trainer does, and binds initial values.
std::unique_ptr<capstan::Model> NewModel() {
  auto plugin = capstan::conformance::LoadedPluginUnderTest::Load(
      {"myvendor/myplugin/libmyvendor_myplugin.so",
       "[plugin/myvendor.myplugin.Config] { vocab_size: 11 hidden_size: 5 "
       "max_position_embeddings: 8 }"},
      capstan::PluginCategory::kModel);
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  if (!plugin.ok()) return nullptr;
  auto model = plugin->Create<capstan::Model>();
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return nullptr;
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < (*model)->parameters().size(); ++i) {
    const capstan::ParameterSpec& spec = (*model)->parameters()[i];
    const at::Tensor value = at::empty(spec.shape, at::kFloat);
    EXPECT_TRUE((*model)
                    ->InitialValue(static_cast<int>(i), /*seed=*/1, 0,
                                   spec.numel(),
                                   value.mutable_data_ptr<float>())
                    .ok());
    parameters.push_back(value.set_requires_grad(spec.trainable));
  }
  (*model)->Bind(std::move(parameters));
  return *std::move(model);
}

TEST(MyPluginTest, InitialValuesAreTheSameInPieces) {
  const auto model = NewModel();
  ASSERT_NE(model, nullptr);
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    const int64_t numel = model->parameters()[i].numel();
    std::vector<float> whole(numel), pieces(numel);
    const int index = static_cast<int>(i);
    ASSERT_TRUE(model->InitialValue(index, 3, 0, numel, whole.data()).ok());
    for (int64_t at = 0; at < numel; at += 7) {
      const int64_t count = std::min<int64_t>(7, numel - at);
      ASSERT_TRUE(
          model->InitialValue(index, 3, at, count, pieces.data() + at).ok());
    }
    EXPECT_EQ(pieces, whole);
  }
}

TEST(MyPluginTest, TheLossIsThatOfTheLogits) {
  const auto model = NewModel();
  ASSERT_NE(model, nullptr);
  capstan::TokenModel* tokens = model->token_model();
  ASSERT_NE(tokens, nullptr);
  capstan::PlainRunner runner;
  capstan::TokenInput input;
  input.tokens = at::tensor({3, 1, 4, 1, 5, 9}, at::kLong).view({2, 3});
  capstan::TokenTargets targets;
  targets.tokens = at::tensor({1, 4, -100, 5, -1, 2}, at::kLong).view({2, 3});
  targets.weights =
      at::tensor({1.0, 2.0, 1.0, 0.5, 1.0, 1.0}, at::kFloat).view({2, 3});
  const at::Tensor logits = tokens->Logits(input, runner);
  ASSERT_EQ(logits.sizes(), (std::vector<int64_t>{2, 3, 11}));
  const at::Tensor log_p = at::log_softmax(logits.to(at::kDouble), -1);
  const double want = -(1.0 * log_p[0][0][1].item<double>() +
                        2.0 * log_p[0][1][4].item<double>() +
                        0.5 * log_p[1][0][5].item<double>() +
                        1.0 * log_p[1][2][2].item<double>());
  const at::Tensor loss = tokens->CrossEntropySum(input, targets, runner);
  EXPECT_NEAR(loss.item<double>(), want, 1e-5);
  EXPECT_TRUE(loss.requires_grad());
}

TEST(MyPluginTest, ACacheChangesNothing) {
  const auto model = NewModel();
  ASSERT_NE(model, nullptr);
  capstan::TokenModel* tokens = model->token_model();
  capstan::PlainRunner runner;
  const at::Tensor text = at::tensor({3, 1, 4, 1}, at::kLong).view({1, 4});
  const at::Tensor whole = tokens->Logits({text}, runner);
  auto cache = tokens->NewCache(1, 8);
  ASSERT_TRUE(cache.ok()) << cache.status();
  tokens->Logits({text.narrow(1, 0, 3), cache->get()}, runner);
  EXPECT_EQ((*cache)->length(), 3);
  const at::Tensor last =
      tokens->Logits({text.narrow(1, 3, 1), cache->get()}, runner);
  EXPECT_EQ((*cache)->length(), 4);
  EXPECT_TRUE(at::allclose(last[0][0], whole[0][3]));
}

}  // namespace
