// SPDX-License-Identifier: Apache-2.0
//
// For the tests of this folder.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_AD_TRANSFORMER_TESTING_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_AD_TRANSFORMER_TESTING_H_

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "plugins/algorithm_distillation/transformer/ad_transformer.h"

namespace capstan::ad_transformer {

// Sizes of a small model.
inline Config SmallSizes(bool compressed = true) {
  Config config;
  config.set_embedding(32);
  config.set_layers(3);
  config.set_heads(4);
  config.set_feed_forward(48);
  config.set_n_transit(40);
  config.set_compressed(compressed);
  return config;
}

inline std::unique_ptr<AdTransformer> Make(const Config& config) {
  auto model = AdTransformer::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

inline std::vector<float> Value(const Model& model, int index,
                                uint64_t seed = 0) {
  std::vector<float> value(model.parameters()[index].numel());
  EXPECT_TRUE(
      model.InitialValue(index, seed, 0, value.size(), value.data()).ok());
  return value;
}

// Binds initial values with requires_grad and returns them.
inline std::vector<at::Tensor> BindTo(Model& model,
                                      at::ScalarType dtype = at::kFloat) {
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    parameters.push_back(
        at::tensor(Value(model, static_cast<int>(i)), at::kFloat)
            .view(model.parameters()[i].shape)
            .to(dtype)
            .requires_grad_(true));
  }
  model.Bind(parameters);
  return parameters;
}

// Random histories of these lengths, padded with garbage to `length`: markers,
// if any, at the start and in the middle, and a query at the end.
inline HistoryInput Histories(const std::vector<int64_t>& lengths,
                              int64_t length, bool compressed) {
  const int64_t batch = static_cast<int64_t>(lengths.size());
  HistoryInput input;
  input.transitions = at::randint(0, 9, {batch, length, 6}).to(at::kByte);
  input.transitions.select(2, HistoryColumns().action()).remainder_(5);
  input.transitions.select(2, HistoryColumns().reward()).remainder_(2);
  std::vector<uint8_t> kinds;
  for (int64_t n : lengths) {
    for (int64_t t = 0; t < length; ++t) {
      HistoryToken kind = HistoryToken::kTransition;
      if (compressed && t == 0) kind = HistoryToken::kStart;
      if (compressed && n > 8 && t == n / 2) kind = HistoryToken::kEnd;
      if (compressed && n > 8 && t == n / 2 + 1) kind = HistoryToken::kStart;
      if (t == n - 1) kind = HistoryToken::kQuery;
      if (t >= n) kind = HistoryToken::kPadding;
      kinds.push_back(static_cast<uint8_t>(kind));
    }
  }
  input.kinds = at::tensor(kinds, at::kByte).view({batch, length});
  input.lengths = at::tensor(lengths, at::kLong);
  return input;
}

}  // namespace capstan::ad_transformer

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_AD_TRANSFORMER_TESTING_H_
