// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_TESTING_H_
#define CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_TESTING_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "plugins/model/llama/llama.h"

namespace capstan::llama {

// Sizes of a small Llama.
inline Config SmallSizes() {
  Config config;
  config.set_hidden_size(12);
  config.set_intermediate_size(10);
  config.set_num_hidden_layers(2);
  config.set_num_attention_heads(3);
  config.set_num_key_value_heads(1);
  config.set_vocab_size(7);
  return config;
}

inline std::unique_ptr<Llama> Make(const Config& config) {
  auto model = Llama::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// The index of "model.layers.LAYER.MODULE.weight".
inline int LayerIndex(const Model& model, int layer,
                      const std::string& module) {
  const std::string name =
      absl::StrCat("model.layers.", layer, ".", module, ".weight");
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    if (model.parameters()[i].name == name) return static_cast<int>(i);
  }
  ADD_FAILURE() << "no parameter " << name;
  return 0;
}

inline std::vector<float> Value(const Model& model, int index,
                                uint64_t seed = 0) {
  std::vector<float> value(model.parameters()[index].numel());
  EXPECT_TRUE(
      model.InitialValue(index, seed, 0, value.size(), value.data()).ok());
  return value;
}

}  // namespace capstan::llama

#endif  // CAPSTAN_PLUGINS_MODEL_LLAMA_LLAMA_TESTING_H_
