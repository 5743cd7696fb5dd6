// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_BOUND_DECODER_TESTING_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_BOUND_DECODER_TESTING_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/model/decoder/decoder.h"
#include "plugins/model/decoder/decoder_testing.h"

namespace capstan::decoder {

// A decoder with this config.json and random parameters, of ATen's generator,
// which are also stored in *bound.
inline std::unique_ptr<Decoder> BoundDecoder(
    const Json& json, at::ScalarType type, bool adapter,
    std::vector<at::Tensor>* bound = nullptr) {
  const std::string folder = TestFolder("model");
  std::ofstream(folder + "/config.json") << json.dump();
  Config config;
  config.set_config(folder + "/config.json");
  auto model = Decoder::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  if (adapter) {
    LoraSpec lora;
    lora.rank = 4;
    lora.alpha = 8.0;
    lora.target_modules = {"all-linear"};
    EXPECT_TRUE((*model)->AddLora(lora).ok());
  }
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& spec : (*model)->parameters()) {
    parameters.push_back(
        (at::randn(spec.shape) * 0.3).to(type).requires_grad_(spec.trainable));
  }
  if (bound != nullptr) *bound = parameters;
  (*model)->Bind(std::move(parameters));
  return *std::move(model);
}

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_BOUND_DECODER_TESTING_H_
