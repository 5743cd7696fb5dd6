// SPDX-License-Identifier: Apache-2.0
//
// Names, sizes, folders and errors; tests/golden compares the results with
// PyTorch.
#include "plugins/llada/model/llada.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "plugins/sdk/lib/lora.h"

namespace capstan::llada {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kVocab = 31;

Config SmallSizes() {
  Config config;
  config.set_d_model(24);
  config.set_mlp_hidden_size(20);
  config.set_n_layers(2);
  config.set_n_heads(2);
  config.set_vocab_size(kVocab);
  config.set_init_std(0.2);
  return config;
}

std::unique_ptr<Llada> Make(const Config& config) {
  auto model = Llada::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

std::vector<at::Tensor> BindTo(Model& model) {
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const ParameterSpec& spec = model.parameters()[i];
    at::Tensor value = at::empty(spec.shape, at::kFloat);
    EXPECT_TRUE(model
                    .InitialValue(i, 5, 0, value.numel(),
                                  value.mutable_data_ptr<float>())
                    .ok());
    parameters.push_back(value.requires_grad_(spec.trainable));
  }
  model.Bind(parameters);
  return parameters;
}

// A folder with what SaveConfig writes and the weights of `model`.
std::string Save(const Llada& model, const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/llada_" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(model.SaveConfig(folder, at::kFloat).ok());
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors");
  EXPECT_TRUE(writer.ok()) << writer.status();
  for (const ParameterSpec& spec : model.parameters()) {
    (*writer)->Declare(spec.name, at::kFloat, spec.shape);
  }
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    std::vector<float> value(model.parameters()[i].numel());
    EXPECT_TRUE(model.InitialValue(i, 5, 0, value.size(), value.data()).ok());
    EXPECT_TRUE((*writer)->Append(value.data(), 4 * value.size()).ok());
  }
  EXPECT_TRUE((*writer)->Close().ok());
  return folder;
}

Json ReadConfig(const std::string& folder) {
  return Json::parse(std::ifstream(folder + "/config.json"));
}

Config From(const std::string& folder) {
  Config config;
  config.set_pretrained(folder);
  return config;
}

TEST(LladaTest, Llada8bHasItsPublishedNumberOfParameters) {
  Config config;
  config.set_d_model(4096);
  config.set_n_heads(32);
  config.set_n_layers(32);
  config.set_mlp_hidden_size(12288);
  config.set_vocab_size(126464);
  config.set_mask_token_id(126336);
  config.set_eos_token_id(126081);
  const auto model = Make(config);
  int64_t total = 0;
  for (const ParameterSpec& spec : model->parameters()) total += spec.numel();
  EXPECT_EQ(total, 8015581184);
  EXPECT_EQ(model->max_positions(), 4096);
  // The plan works without memory, too.
  const std::vector<UnitMemory> units =
      model->PlanUnits(1, 4096, at::kBFloat16);
  EXPECT_EQ(units.size(), model->units().size());
  EXPECT_EQ(units[1].output, int64_t{4096} * 4096 * 2);
}

TEST(LladaTest, SeesTheWholeText) {
  const auto model = Make(SmallSizes());
  EXPECT_FALSE(model->causal());
  EXPECT_EQ(model->sampling_objective(), "capstan.masked_diffusion");
  BindTo(*model);
  const at::AutoGradMode no_gradients(false);
  PlainRunner runner;
  const at::Tensor tokens = at::randint(kVocab, {2, 9}, at::kLong);
  at::Tensor changed = tokens.clone();
  changed[0][8] = (changed[0][8] + 1) % kVocab;
  const at::Tensor moved =
      (model->Logits({tokens}, runner) != model->Logits({changed}, runner))
          .any(2);
  EXPECT_TRUE(moved[0].all().item<bool>());
  EXPECT_FALSE(moved[1].any().item<bool>());
}

TEST(LladaTest, TheLastTokenIsTheMaskUnlessSaid) {
  EXPECT_EQ(Make(SmallSizes())->mask_token(), kVocab - 1);
  Config config = SmallSizes();
  config.set_mask_token_id(3);
  EXPECT_EQ(Make(config)->mask_token(), 3);
}

TEST(LladaTest, BadSizesNameTheirField) {
  const auto expect = [](const std::string& field, auto edit) {
    Config config = SmallSizes();
    edit(config);
    const absl::Status status = Llada::Create(config).status();
    EXPECT_EQ(FieldOf(status), field) << status;
  };
  expect("d_model", [](Config& c) { c.clear_d_model(); });
  expect("d_model", [](Config& c) { c.set_d_model(25); });
  expect("d_model", [](Config& c) { c.set_d_model(26); });  // heads of 13
  expect("mlp_hidden_size", [](Config& c) { c.clear_mlp_hidden_size(); });
  expect("n_layers", [](Config& c) { c.set_n_layers(-1); });
  expect("n_heads", [](Config& c) { c.clear_n_heads(); });
  expect("n_kv_heads", [](Config& c) { c.set_n_kv_heads(3); });
  expect("vocab_size", [](Config& c) { c.clear_vocab_size(); });
  expect("max_sequence_length",
         [](Config& c) { c.set_max_sequence_length(-5); });
  expect("init_std", [](Config& c) { c.set_init_std(-1.0); });
  expect("mask_token_id", [](Config& c) { c.set_mask_token_id(kVocab); });
  expect("mask_token_id", [](Config& c) { c.set_mask_token_id(-1); });
  expect("pad_token_id", [](Config& c) { c.set_pad_token_id(kVocab); });
  expect("pretrained", [](Config& c) { c.set_pretrained("somewhere"); });
  Config config = SmallSizes();
  config.set_mask_token_id(126336);
  EXPECT_THAT(std::string(Llada::Create(config).status().message()),
              HasSubstr("must be below vocab_size, which is "
                        "31, and not negative, is 126336"));
}

TEST(LladaFolderTest, FolderRoundTrip) {
  Config config = SmallSizes();
  config.set_rope_theta(1234.5);
  config.set_mask_token_id(7);
  config.set_eos_token_id(2);
  const auto source = Make(config);
  const std::string folder = Save(*source, "round_trip");
  const auto model = Make(From(folder));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->mask_token(), 7);
  EXPECT_EQ(model->eos_token(), 2);
  for (size_t i = 0; i < source->parameters().size(); ++i) {
    EXPECT_EQ(model->parameters()[i].name, source->parameters()[i].name);
  }
  const Json json = ReadConfig(folder);
  EXPECT_EQ(json["architectures"], Json({"LLaDAModelLM"}));
  EXPECT_EQ(json["model_type"], "llada");
  EXPECT_EQ(json["embedding_size"], kVocab);
  EXPECT_EQ(json["vocab_size"], kVocab);
  EXPECT_EQ(json["mask_token_id"], 7);
  EXPECT_EQ(json["eos_token_id"], 2);
  EXPECT_EQ(json["pad_token_id"], 2);
  EXPECT_EQ(json["n_kv_heads"], 2);
  EXPECT_EQ(json["rope_theta"], 1234.5);
  // Keys whose defaults in LLaDA's own code differ.
  EXPECT_EQ(json["rope"], true);
  EXPECT_EQ(json["include_bias"], false);
  EXPECT_EQ(json["weight_tying"], false);
  EXPECT_EQ(json["residual_dropout"], 0.0);
}

TEST(LladaFolderTest, TiedWeightsAreOneParameter) {
  Config config = SmallSizes();
  config.set_weight_tying(true);
  const auto source = Make(config);
  EXPECT_EQ(source->parameters().back().name, "model.transformer.ln_f.weight");
  const auto model = Make(From(Save(*source, "tied")));
  EXPECT_EQ(model->parameters().size(), source->parameters().size());
}

TEST(LladaFolderTest, MoreRowsThanTokensStay) {
  const std::string folder = Save(*Make(SmallSizes()), "rows");
  Json json = ReadConfig(folder);
  json["vocab_size"] = kVocab - 4;
  std::ofstream(folder + "/config.json") << json;
  const auto model = Make(From(folder));
  EXPECT_EQ(model->vocab_size(), kVocab);
  ASSERT_TRUE(model->SaveConfig(folder, at::kFloat).ok());
  EXPECT_EQ(ReadConfig(folder)["vocab_size"], kVocab - 4);
  EXPECT_EQ(ReadConfig(folder)["embedding_size"], kVocab);

  Config grown = From(folder);
  grown.set_vocab_size(kVocab + 2);
  const auto larger = Make(grown);
  EXPECT_EQ(larger->vocab_size(), kVocab + 2);
  EXPECT_EQ(larger->parameters().back().shape[0], kVocab + 2);
  ASSERT_TRUE(larger->SaveConfig(folder, at::kFloat).ok());
  EXPECT_EQ(ReadConfig(folder)["vocab_size"], kVocab + 2);
  EXPECT_EQ(ReadConfig(folder)["embedding_size"], kVocab + 2);
}

TEST(LladaFolderTest, WhatIsNotImplementedIsRefusedByKey) {
  const std::string folder = Save(*Make(SmallSizes()), "refused");
  const Json before = ReadConfig(folder);
  const auto refused = [&](const std::string& key, Json value) {
    Json json = before;
    if (value.is_discarded()) {
      json.erase(key);
    } else {
      json[key] = std::move(value);
    }
    std::ofstream(folder + "/config.json") << json;
    const absl::Status status = Llada::Create(From(folder)).status();
    EXPECT_EQ(FieldOf(status), "pretrained") << key;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("/config.json: " + key + " "));
  };
  refused("model_type", "llama");
  refused("block_type", "sequential");
  refused("layer_norm_type", "default");
  refused("activation_type", "swiglu");
  refused("rope", false);
  refused("include_bias", true);
  refused("include_qkv_bias", true);
  refused("bias_for_layer_norm", true);
  refused("attention_layer_norm", true);
  refused("input_emb_norm", true);
  refused("scale_logits", true);
  refused("alibi", true);
  refused("rope_full_precision", false);
  refused("multi_query_attention", true);
  refused("residual_dropout", 0.1);
  refused("block_group_size", 2);
  refused("clip_qkv", 8.0);
  refused("quantization_config", Json::object());
  refused("embedding_size", kVocab - 1);
  refused("mask_token_id", 126336);
  refused("d_model", "wide");
  const Json absent(Json::value_t::discarded);
  for (const char* key :
       {"model_type", "block_type", "layer_norm_type", "activation_type",
        "rope", "include_bias", "d_model", "mlp_hidden_size", "mask_token_id",
        "max_sequence_length"}) {
    refused(key, absent);
  }
}

TEST(LladaFolderTest, WrongTensorsAreRefusedByName) {
  const std::string folder = Save(*Make(SmallSizes()), "tensors");
  Json json = ReadConfig(folder);
  json["n_layers"] = 3;
  std::ofstream(folder + "/config.json") << json;
  EXPECT_THAT(std::string(Llada::Create(From(folder)).status().message()),
              HasSubstr("lack tensor 'model.transformer.blocks.2.attn_norm"
                        ".weight'"));
}

TEST(LladaLoraTest, ModulesAreItsOwn) {
  const auto model = Make(SmallSizes());
  const size_t base = model->parameters().size();
  LoraSpec spec;
  spec.rank = 3;
  spec.target_modules = {"q_proj", "attn_out", "ff_out"};
  ASSERT_TRUE(model->AddLora(spec).ok());
  const auto& specs = model->parameters();
  // The head is no block's ff_out.
  ASSERT_EQ(specs.size(), base + 2 * 3 * 2);
  EXPECT_EQ(specs[base].name,
            "base_model.model.model.transformer.blocks.0.q_proj.lora_A.weight");
  EXPECT_EQ(specs.back().name,
            "base_model.model.model.transformer.blocks.1.ff_out.lora_B.weight");
  EXPECT_EQ(specs.back().shape, (std::vector<int64_t>{24, 3}));
  // Merging finds the weight of an adapter by these names.
  for (size_t i = base; i < specs.size(); ++i) {
    const auto name = ParseAdapterName(specs[i].name);
    ASSERT_TRUE(name.has_value()) << specs[i].name;
    EXPECT_TRUE(std::any_of(specs.begin(), specs.begin() + base,
                            [&](const ParameterSpec& weight) {
                              return weight.name == name->module + ".weight";
                            }))
        << specs[i].name;
  }

  const auto all = Make(SmallSizes());
  spec.target_modules = {"all-linear"};
  ASSERT_TRUE(all->AddLora(spec).ok());
  EXPECT_EQ(all->parameters().size(), base + 2 * 7 * 2);

  spec.target_modules = {"gate_proj"};
  const absl::Status status = Make(SmallSizes())->AddLora(spec);
  EXPECT_EQ(FieldOf(status), "target_modules");
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("attn_out, ff_out, ff_proj, k_proj, q_proj, up_proj, "
                        "v_proj, or all-linear"));
}

// W + scale B A equals the adapter.
TEST(LladaLoraTest, MergedWeightsGiveTheSameLogits) {
  const auto model = Make(SmallSizes());
  const int base = static_cast<int>(model->parameters().size());
  LoraSpec spec;
  spec.rank = 3;
  spec.target_modules = {"all-linear"};
  ASSERT_TRUE(model->AddLora(spec).ok());
  const std::vector<at::Tensor> bound = BindTo(*model);
  const at::AutoGradMode no_gradients(false);
  at::manual_seed(2);
  std::vector<at::Tensor> merged(bound.begin(), bound.begin() + base);
  for (size_t i = base; i < bound.size(); i += 2) {
    bound[i + 1].copy_(at::rand(bound[i + 1].sizes()) * 0.1);
    const std::string weight =
        ParseAdapterName(model->parameters()[i].name)->module + ".weight";
    for (int w = 0; w < base; ++w) {
      if (model->parameters()[w].name != weight) continue;
      merged[w] = bound[w] + spec.scale() * bound[i + 1].mm(bound[i]);
    }
  }
  const auto plain = Make(SmallSizes());
  plain->Bind(merged);
  PlainRunner runner;
  const at::Tensor tokens = at::randint(kVocab, {2, 9}, at::kLong);
  const at::Tensor got = model->Logits({tokens}, runner);
  const at::Tensor wanted = plain->Logits({tokens}, runner);
  EXPECT_LT((got - wanted).abs().max().item<double>(), 1e-5);
}

// Documents of a packed row give the same as alone: loss and gradients.
TEST(LladaPackedTest, RowsAreTheSumOfTheirDocuments) {
  const auto model = Make(SmallSizes());
  std::vector<at::Tensor> parameters = BindTo(*model);
  PlainRunner runner;
  at::manual_seed(3);
  const auto take_gradients = [&] {
    std::vector<at::Tensor> gradients;
    for (at::Tensor& p : parameters) {
      gradients.push_back(p.grad().to(at::kDouble));
      p.mutable_grad().reset();
    }
    return gradients;
  };
  std::vector<at::Tensor> tokens, targets, weights, positions;
  for (const int64_t length : {1, 5, 67, 1, 6, 3, 77}) {
    tokens.push_back(at::randint(kVocab, {1, length}, at::kLong));
    targets.push_back(at::randint(-kVocab, kVocab, {1, length}, at::kLong));
    weights.push_back(at::rand({1, length}));
    positions.push_back(at::arange(length).to(at::kLong));
  }
  TokenInput input;
  input.tokens = at::cat(tokens, 1).view({2, 80});
  input.positions = at::cat(positions).view({2, 80});
  const at::Tensor packed = model->CrossEntropySum(
      input,
      {at::cat(targets, 1).view({2, 80}), at::cat(weights, 1).view({2, 80})},
      runner);
  packed.backward();
  const std::vector<at::Tensor> gradients = take_gradients();
  double alone = 0.0;
  std::vector<at::Tensor> sums;
  for (size_t d = 0; d < tokens.size(); ++d) {
    const at::Tensor loss =
        model->CrossEntropySum({tokens[d]}, {targets[d], weights[d]}, runner);
    loss.backward();
    alone += loss.item<double>();
    const std::vector<at::Tensor> more = take_gradients();
    for (size_t i = 0; i < more.size(); ++i) {
      if (d == 0) sums.push_back(at::zeros_like(more[i]));
      sums[i] += more[i];
    }
  }
  EXPECT_NEAR(packed.item<double>() / alone, 1.0, 1e-6);
  for (size_t i = 0; i < sums.size(); ++i) {
    EXPECT_LT((gradients[i] - sums[i]).norm().item<double>(),
              1e-5 * sums[i].norm().item<double>())
        << model->parameters()[i].name;
  }
}

}  // namespace
}  // namespace capstan::llada
