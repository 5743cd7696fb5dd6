// SPDX-License-Identifier: Apache-2.0
//
// A LoRA adapter on weights in NF4 (QLoRA) against bitsandbytes and PEFT:
// testdata/llama_qlora holds what bitsandbytes 0.50.2 packed, and what torch
// 2.11.0 with peft 0.21.2 computed with the values that it stands for.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "plugins/model/decoder/decoder.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/unit_runner.h"
#include "tests/golden/qlora_folder.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const std::string kFolder = "tests/golden/testdata/llama_qlora";

class LlamaQloraTest : public ::testing::Test {
 protected:
  struct Made {
    std::unique_ptr<decoder::Decoder> model;
    std::vector<at::Tensor> parameters;
  };

  void SetUp() override {
    quantized_ = ::testing::TempDir() + "/llama_qlora_nf4";
    WriteQloraFolder(kFolder, quantized_);
    auto golden = SafetensorsReader::Open(kFolder + "/golden.safetensors");
    ASSERT_TRUE(golden.ok()) << golden.status();
    const TensorEntry& ids = (*golden)->tensors().at("input_ids");
    ids_ = at::empty(ids.shape, at::kLong);
    std::memcpy(ids_.mutable_data_ptr(), ids.data, ids.bytes);
    const TensorEntry& logits = (*golden)->tensors().at("logits");
    logits_ = at::empty(logits.shape, at::kFloat);
    std::memcpy(logits_.mutable_data_ptr(), logits.data, logits.bytes);
    wanted_ = Json::parse(std::ifstream(kFolder + "/golden.json"))["adamw"];
  }

  // With the golden adapter.
  static Made Make(const std::string& folder, Quantize quantize) {
    Made made;
    decoder::Config config;
    config.set_pretrained(folder);
    auto model = decoder::Decoder::Create(config);
    EXPECT_TRUE(model.ok()) << model.status();
    if (!model.ok()) return made;
    made.model = *std::move(model);
    auto spec = ReadAdapterConfig(kFolder + "/adapter");
    EXPECT_TRUE(spec.ok()) << spec.status();
    spec->quantize = quantize;
    const absl::Status added = made.model->AddLora(*spec);
    EXPECT_TRUE(added.ok()) << added;
    const auto& specs = made.model->parameters();
    for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
      const int64_t bytes = made.model->PackedBytes(i);
      at::Tensor value = bytes > 0 ? at::empty({bytes}, at::kByte)
                                   : at::empty(specs[i].shape, at::kFloat);
      const absl::Status read =
          bytes > 0 ? made.model->PackedValue(i, 0, bytes,
                                              value.mutable_data_ptr<uint8_t>())
                    : made.model->InitialValue(i, 0, 0, value.numel(),
                                               value.mutable_data_ptr<float>());
      EXPECT_TRUE(read.ok()) << read;
      if (specs[i].trainable) value.set_requires_grad(true);
      made.parameters.push_back(value);
    }
    made.model->Bind(made.parameters);
    return made;
  }

  at::Tensor Logits(Made& made) {
    at::NoGradGuard no_grad;
    PlainRunner runner;
    TokenInput input;
    input.tokens = ids_;
    return made.model->Logits(input, runner);
  }

  // The losses and gradient norms of five steps of AdamW.
  std::vector<std::pair<double, double>> Train(Made& made) {
    PlainRunner runner;
    TokenInput input;
    input.tokens = ids_;
    TokenTargets targets;
    targets.tokens = at::full(ids_.sizes(), -100, at::kLong);
    targets.tokens.narrow(1, 0, ids_.size(1) - 1)
        .copy_(ids_.narrow(1, 1, ids_.size(1) - 1));
    const double count = static_cast<double>(ids_.numel() - ids_.size(0));
    std::vector<at::Tensor> trained, m, v;
    for (const at::Tensor& p : made.parameters) {
      if (!p.requires_grad()) continue;
      trained.push_back(p);
      m.push_back(at::zeros_like(p.detach()));
      v.push_back(at::zeros_like(p.detach()));
    }
    std::vector<std::pair<double, double>> steps;
    for (int step = 1; step <= 5; ++step) {
      for (at::Tensor& p : trained) p.mutable_grad().reset();
      const at::Tensor loss =
          made.model->CrossEntropySum(input, targets, runner) / count;
      loss.backward();
      at::NoGradGuard no_grad;
      double squares = 0.0;
      for (const at::Tensor& p : trained) {
        squares += p.grad().to(at::kDouble).square().sum().item<double>();
      }
      const double norm = std::sqrt(squares);
      const double clip = std::min(1.0, 1.0 / (norm + 1e-6));
      steps.emplace_back(loss.item<double>(), norm);
      for (size_t i = 0; i < trained.size(); ++i) {
        const at::Tensor g = trained[i].grad() * clip;
        m[i].mul_(0.9).add_(g, 0.1);
        v[i].mul_(0.999).addcmul_(g, g, 0.001);
        const at::Tensor root =
            v[i].sqrt() / std::sqrt(1.0 - std::pow(0.999, step)) + 1e-8;
        trained[i].detach().addcdiv_(
            m[i], root,
            -wanted_["lr"].get<double>() / (1.0 - std::pow(0.9, step)));
      }
    }
    return steps;
  }

  std::string quantized_;
  at::Tensor ids_, logits_;
  Json wanted_;
};

TEST_F(LlamaQloraTest, LogitsOfAQuantisedFolder) {
  Made made = Make(quantized_, Quantize::kFolders);
  ASSERT_NE(made.model, nullptr);
  int packed = 0;
  for (size_t i = 0; i < made.parameters.size(); ++i) {
    packed += made.model->PackedBytes(static_cast<int>(i)) > 0 ? 1 : 0;
  }
  EXPECT_EQ(packed, 28);
  EXPECT_LT((Logits(made) - logits_).abs().max().item<double>(), 1e-5);
}

TEST_F(LlamaQloraTest, ValuesAreExact) {
  Made made = Make(quantized_, Quantize::kNf4Double);
  ASSERT_NE(made.model, nullptr);
  auto golden = SafetensorsReader::Open(kFolder + "/nf4.safetensors");
  ASSERT_TRUE(golden.ok());
  for (size_t i = 0; i < made.parameters.size(); ++i) {
    const int index = static_cast<int>(i);
    if (made.model->PackedBytes(index) == 0) continue;
    const ParameterSpec& spec = made.model->parameters()[i];
    const TensorEntry& entry =
        (*golden)->tensors().at(spec.name + ".float32_double");
    std::vector<float> values(spec.numel()), unpacked(spec.numel());
    ASSERT_TRUE(
        made.model->InitialValue(index, 0, 0, spec.numel(), values.data())
            .ok());
    made.model->Unpack(index, made.parameters[i].const_data_ptr<uint8_t>(),
                       unpacked.data());
    EXPECT_EQ(std::memcmp(values.data(), entry.data, entry.bytes), 0);
    EXPECT_EQ(values, unpacked) << spec.name;
  }
}

TEST_F(LlamaQloraTest, FiveAdamWSteps) {
  Made made = Make(quantized_, Quantize::kFolders);
  ASSERT_NE(made.model, nullptr);
  const auto steps = Train(made);
  for (size_t i = 0; i < steps.size(); ++i) {
    const double loss = wanted_["losses"][i], norm = wanted_["grad_norms"][i];
    EXPECT_NEAR(steps[i].first, loss, 2e-5) << i;
    EXPECT_NEAR(steps[i].second, norm, 1e-4 * norm) << i;
  }
}

// Quantised by us while it is read: bitsandbytes' own scales differ in five
// blocks (kernels/quant/nf4_test.cc).
TEST_F(LlamaQloraTest, QuantisesWhatIsNotYet) {
  Made made = Make(kFolder + "/base", Quantize::kNf4Double);
  ASSERT_NE(made.model, nullptr);
  EXPECT_LT((Logits(made) - logits_).abs().max().item<double>(), 2e-2);
  const auto steps = Train(made);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(steps[i].first, wanted_["losses"][i].get<double>(), 5e-3) << i;
  }
}

// The memory of a frozen parameter.
TEST_F(LlamaQloraTest, BytesAValue) {
  Made made = Make(kFolder + "/base", Quantize::kNf4Double);
  ASSERT_NE(made.model, nullptr);
  int64_t bytes = 0, values = 0;
  for (size_t i = 0; i < made.parameters.size(); ++i) {
    const int64_t packed = made.model->PackedBytes(static_cast<int>(i));
    if (packed == 0) continue;
    EXPECT_EQ(static_cast<int64_t>(made.parameters[i].nbytes()), packed);
    bytes += packed;
    values += made.model->parameters()[i].numel();
  }
  EXPECT_LT(static_cast<double>(bytes) / values, 0.52);
}

TEST_F(LlamaQloraTest, RefusesAnotherFormatThanTheFolders) {
  decoder::Config config;
  config.set_pretrained(quantized_);
  auto model = decoder::Decoder::Create(config);
  ASSERT_TRUE(model.ok()) << model.status();
  LoraSpec spec;
  spec.target_modules = {"all-linear"};
  spec.quantize = Quantize::kNf4;
  const absl::Status added = (*model)->AddLora(spec);
  EXPECT_TRUE(absl::StrContains(added.message(), "NF4_DOUBLE already"))
      << added;
}

// Without an adapter it is an ordinary model of the values.
TEST_F(LlamaQloraTest, AQuantisedFolderAlone) {
  decoder::Config config;
  config.set_pretrained(quantized_);
  auto model = decoder::Decoder::Create(config);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->PackedBytes(5), 0);
  const std::string folder = ::testing::TempDir() + "/llama_qlora_saved";
  fs::remove_all(folder);
  fs::create_directories(folder);
  ASSERT_TRUE((*model)->SaveConfig(folder, at::kFloat).ok());
  const Json saved = Json::parse(std::ifstream(folder + "/config.json"));
  EXPECT_FALSE(saved.contains("quantization_config"));
}

}  // namespace
}  // namespace capstan
