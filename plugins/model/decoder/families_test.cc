// SPDX-License-Identifier: Apache-2.0
//
// What config.json means in each family, in the spellings of transformers 4 and
// 5; tests/golden compares what is computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "kernels/context/run_device.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/model/decoder/decoder_testing.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

DecoderConfig Read(const Json& json) {
  const auto config = ReadJson(json);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : DecoderConfig();
}

std::string ErrorOf(const Json& json) {
  return std::string(ReadJson(json).status().message());
}

std::vector<int64_t> Windows(const DecoderConfig& c) {
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    windows.push_back(c.layer(i).window);
  }
  return windows;
}

std::vector<int> Ropes(const DecoderConfig& c) {
  std::vector<int> ropes;
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    ropes.push_back(c.layer(i).rope);
  }
  return ropes;
}

std::vector<std::string> NamesInLayer(const DecoderConfig& c, int unit) {
  std::vector<std::string> names;
  for (const ParameterSpec& spec : ParameterSpecs(c)) {
    if (spec.unit == unit) names.push_back(spec.name);
  }
  return names;
}

// A user means what the run has made of the model.
TEST(ReadFolderTest, AFolderOfARunSaysWhereItsModelIs) {
  namespace fs = std::filesystem;
  const fs::path runs = fs::path(::testing::TempDir()) / "runs";
  const fs::path run = runs / "newest";
  const fs::path checkpoint = run / "checkpoints/step-00000002";
  fs::create_directories(checkpoint);
  std::ofstream(run / "config.pbtxt") << "";
  std::ofstream(checkpoint / "manifest.json") << "{}";
  const auto error = [](const fs::path& folder) {
    return std::string(ReadFolder(folder.string()).status().message());
  };
  for (const fs::path& folder : {run, checkpoint}) {
    EXPECT_THAT(error(folder), HasSubstr("train { resume: AUTO }"));
  }
  fs::create_directories(run / "final");
  std::ofstream(run / "final/config.json") << "{}";
  std::ofstream(runs / "latest") << "newest\n";
  for (const fs::path& folder : {run, checkpoint, runs}) {
    EXPECT_THAT(error(folder), HasSubstr("the model of the run is in " +
                                         (run / "final").string()));
  }
  EXPECT_THAT(error(run / "checkpoints"), Not(HasSubstr("run is in")));
}

TEST(FamiliesTest, AllAreKnown) {
  std::vector<std::string> types;
  for (const Family* family : Families()) types.push_back(family->model_type);
  EXPECT_THAT(types,
              ::testing::ElementsAre("gemma2", "gemma3", "gemma3_text", "llama",
                                     "mistral", "olmo2", "phi3", "qwen2",
                                     "qwen3", "qwen3_moe", "smollm3"));
}

TEST(FamiliesTest, AnUnknownModelTypeIsNamedWithThoseKnown) {
  const std::string error = ErrorOf({{"model_type", "mamba"}});
  EXPECT_THAT(error, HasSubstr("config.json: model_type \"mamba\" is not "
                               "implemented; known are \"gemma2\""));
  EXPECT_THAT(error, HasSubstr("\"smollm3\""));
}

TEST(FamiliesTest, QuantisedFoldersAndDropoutAreRefused) {
  for (const Family* family : Families()) {
    const std::string type = family->model_type;
    const std::string golden = type == "gemma3" || type == "gemma3_text"
                                   ? "gemma3"
                               : type == "llama" ? "llama31"
                                                 : type;
    Json json = GoldenConfig(golden);
    if (type == "gemma3") json = {{"model_type", type}, {"text_config", json}};
    EXPECT_TRUE(ReadJson(json).ok()) << ReadJson(json).status();
    json["quantization_config"] = {{"quant_method", "bitsandbytes"}};
    EXPECT_THAT(ErrorOf(json), HasSubstr("quantization_config")) << type;
    json.erase("quantization_config");
    (type == "gemma3" ? json["text_config"] : json)["attention_dropout"] = 0.5;
    EXPECT_THAT(ErrorOf(json), HasSubstr("attention_dropout 0.5 is not"))
        << type;
  }
}

TEST(FamiliesTest, RopeOfTransformers4And5) {
  Json json = GoldenConfig("llama31");
  const DecoderConfig newer = Read(json);
  EXPECT_EQ(newer.ropes[0].kind, RopeKind::kLlama3);
  EXPECT_EQ(newer.ropes[0].theta, 500000.0);
  EXPECT_EQ(newer.ropes[0].factor, 8.0);
  EXPECT_EQ(newer.ropes[0].trained_positions, 32);
  Json scaling = json["rope_parameters"];
  scaling.erase("rope_theta");
  json.erase("rope_parameters");
  json["rope_theta"] = 500000.0;
  json["rope_scaling"] = scaling;
  const DecoderConfig older = Read(json);
  EXPECT_EQ(older.ropes[0].kind, RopeKind::kLlama3);
  EXPECT_EQ(older.ropes[0].theta, 500000.0);
  EXPECT_EQ(older.ropes[0].high_frequency_factor, 4.0);
  EXPECT_EQ(older.ropes[0].trained_positions, 32);
  // Saved, it has both.
  AddRopeSpellings(older.ropes, &json);
  EXPECT_EQ(nlohmann::json(json["rope_parameters"]),
            nlohmann::json(GoldenConfig("llama31")["rope_parameters"]));
  Json other = GoldenConfig("llama31");
  AddRopeSpellings(newer.ropes, &other);
  EXPECT_EQ(other["rope_theta"], 500000.0);
  EXPECT_EQ(other["rope_scaling"], scaling);
}

TEST(FamiliesTest, AttentionFactors) {
  Json json = GoldenConfig("qwen2");
  json["rope_parameters"] = {{"rope_type", "yarn"},
                             {"rope_theta", 10000.0},
                             {"factor", 4.0},
                             {"original_max_position_embeddings", 64}};
  EXPECT_NEAR(Read(json).ropes[0].attention_factor, 1.13862944, 1e-7);
  json["rope_parameters"]["factor"] = 8.0;
  json["rope_parameters"]["mscale"] = 0.7;
  json["rope_parameters"]["mscale_all_dim"] = 0.3;
  EXPECT_NEAR(Read(json).ropes[0].attention_factor, 1.07829346, 1e-7);
  json["rope_parameters"]["attention_factor"] = 1.5;
  EXPECT_EQ(Read(json).ropes[0].attention_factor, 1.5);
}

TEST(FamiliesTest, RopesThatMakeNoSenseAreRefused) {
  const auto error = [](const Json& rope) {
    Json json = GoldenConfig("llama31");
    json["rope_parameters"] = rope;
    return ErrorOf(json);
  };
  EXPECT_THAT(error({{"rope_type", "linear"}, {"factor", 0.5}}),
              HasSubstr("rope_parameters.factor must be at least 1"));
  EXPECT_THAT(error({{"rope_type", "llama3"}, {"factor", 8.0}}),
              HasSubstr("rope_parameters.low_freq_factor is missing"));
  EXPECT_THAT(error({{"rope_type", "longrope"}, {"factor", 8.0}}),
              HasSubstr("rope_parameters.short_factor must be a list"));
  EXPECT_THAT(error({{"rope_type", "longrope"},
                     {"short_factor", {1.0}},
                     {"long_factor", {1.0}}}),
              HasSubstr("must have 8 numbers each"));
  EXPECT_THAT(error({{"rope_type", "default"}, {"spin", 2}}),
              HasSubstr("rope_parameters.spin is not known"));
  EXPECT_THAT(error({{"rope_theta", -1.0}}), HasSubstr("rope_theta"));
  EXPECT_THAT(error({{"partial_rotary_factor", 0.5}}),
              HasSubstr("partial_rotary_factor 0.5 is not implemented"));
  EXPECT_THAT(error(Json::array({1})), HasSubstr("must be an object"));
}

TEST(FamiliesTest, LlamaWithBiases) {
  const DecoderConfig c = Read(GoldenConfig("llama_biases"));
  EXPECT_TRUE(c.qkv_bias && c.output_bias && c.mlp_bias);
  EXPECT_EQ(NamesInLayer(c, 1).size(), 9u + 7u);
}

// So that matrices of one input follow one another, and biases do.
TEST(FamiliesTest, OnGpusBiasesAreBehindTheMatricesOfOneInput) {
  const DecoderConfig c = Read(GoldenConfig("llama_biases"));
  const DecoderLayout cpu(c);
  const RunDevice before = CurrentRunDevice();
  SetRunDevice({/*gpu=*/true, /*memory=*/0});
  const DecoderLayout gpu(c);
  SetRunDevice(before);
  for (const DecoderLayout* const layout : {&cpu, &gpu}) {
    const bool behind = layout == &gpu;
    const DecoderLayout::Layer& layer = layout->layers[1];
    EXPECT_EQ(layer.weight[kKey] - layer.weight[kQuery], behind ? 1 : 2);
    EXPECT_EQ(layer.weight[kValue] - layer.weight[kKey], behind ? 1 : 2);
    EXPECT_EQ(layer.bias[kKey] - layer.bias[kQuery], behind ? 1 : 2);
    EXPECT_EQ(layer.weight[kUp] - layer.weight[kGate], behind ? 1 : 2);
    EXPECT_EQ(layer.bias[kQuery] - layer.weight[kQuery], behind ? 3 : 1);
  }
  std::map<std::string, std::vector<int64_t>> shapes[2];
  for (const ParameterSpec& spec : cpu.specs) shapes[0][spec.name] = spec.shape;
  for (const ParameterSpec& spec : gpu.specs) shapes[1][spec.name] = spec.shape;
  EXPECT_EQ(shapes[0], shapes[1]);
}

TEST(FamiliesTest, MistralsWindow) {
  Json json = GoldenConfig("mistral");
  EXPECT_EQ(Windows(Read(json)), (std::vector<int64_t>{8, 8, 8, 8}));
  json["sliding_window"] = nullptr;
  EXPECT_EQ(Windows(Read(json)), (std::vector<int64_t>{0, 0, 0, 0}));
  // Absent, it is 4096, which is more than there are positions.
  json.erase("sliding_window");
  EXPECT_EQ(Windows(Read(json)), (std::vector<int64_t>{0, 0, 0, 0}));
  json["max_position_embeddings"] = 8192;
  EXPECT_EQ(Windows(Read(json)), std::vector<int64_t>(4, 4096));
  json["sliding_window"] = -2;
  EXPECT_THAT(ErrorOf(json),
              HasSubstr("sliding_window must be 0 or greater, or null"));
}

TEST(FamiliesTest, QwensUpperLayersMayHaveAWindow) {
  Json json = GoldenConfig("qwen3");
  json.erase("layer_types");
  json["sliding_window"] = 16;
  json["max_window_layers"] = 3;
  EXPECT_EQ(Windows(Read(json)), (std::vector<int64_t>{0, 0, 0, 0}));
  json["use_sliding_window"] = true;
  EXPECT_EQ(Windows(Read(json)), (std::vector<int64_t>{0, 0, 0, 16}));
  json["layer_types"] = {"sliding_attention", "full_attention",
                         "full_attention", "full_attention"};
  EXPECT_EQ(Windows(Read(json)), (std::vector<int64_t>{16, 0, 0, 0}));
  json["layer_types"][1] = "linear_attention";
  EXPECT_THAT(ErrorOf(json), HasSubstr("layer_types \"linear_attention\""));
  json["layer_types"] = {"full_attention"};
  EXPECT_THAT(ErrorOf(json), HasSubstr("each of the 4 layers"));
}

TEST(FamiliesTest, QwenMoe) {
  Json json = GoldenConfig("qwen3_moe");
  DecoderConfig c = Read(json);
  EXPECT_EQ(c.experts.count, 8);
  EXPECT_EQ(c.experts.chosen, 2);
  EXPECT_EQ(c.experts.loss_coefficient, 0.0);
  const DecoderLayout layout(c);
  EXPECT_EQ(layout.units[1], "layers.0");
  EXPECT_EQ(layout.units[2], "layers.0.experts");
  EXPECT_EQ(layout.layers[1].unit, 3);
  EXPECT_EQ(NamesInLayer(c, 2).front(),
            "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(NamesInLayer(c, 2)[1], "model.layers.0.mlp.gate.weight");
  EXPECT_EQ(NamesInLayer(c, 2).back(),
            "model.layers.0.mlp.experts.7.down_proj.weight");
  // The loss counts only if the router's logits are wanted.
  json["router_aux_loss_coef"] = 0.01;
  EXPECT_EQ(Read(json).experts.loss_coefficient, 0.0);
  json["output_router_logits"] = true;
  EXPECT_EQ(Read(json).experts.loss_coefficient, 0.01);
  // As transformers 4 calls their number; and layers without.
  json.erase("num_local_experts");
  json["num_experts"] = 6;
  json["mlp_only_layers"] = {3};
  json["decoder_sparse_step"] = 2;
  c = Read(json);
  EXPECT_EQ(c.experts.count, 6);
  EXPECT_FALSE(c.layer(0).experts);
  EXPECT_TRUE(c.layer(1).experts);
  EXPECT_FALSE(c.layer(3).experts);
  json["num_experts_per_tok"] = 7;
  EXPECT_THAT(ErrorOf(json), HasSubstr("num_experts_per_tok"));
  json["mlp_only_layers"] = {4};
  EXPECT_THAT(ErrorOf(json), HasSubstr("mlp_only_layers"));
}

TEST(FamiliesTest, Gemma2) {
  Json json = GoldenConfig("gemma2");
  DecoderConfig c = Read(json);
  EXPECT_TRUE(c.norm_before && c.norm_after && c.norm_plus_one);
  EXPECT_EQ(c.embedding_scale, 8.0);
  EXPECT_EQ(c.attention_scale, 1.0 / std::sqrt(24.0));
  EXPECT_EQ(c.attention_softcap, 50.0);
  EXPECT_EQ(c.logit_softcap, 30.0);
  EXPECT_EQ(Windows(c), (std::vector<int64_t>{8, 0, 8, 0}));
  json.erase("layer_types");
  EXPECT_EQ(Windows(Read(json)), (std::vector<int64_t>{8, 0, 8, 0}));
  json["attn_logit_softcapping"] = nullptr;
  json.erase("final_logit_softcapping");
  c = Read(json);
  EXPECT_EQ(c.attention_softcap, 0.0);
  EXPECT_EQ(c.logit_softcap, 30.0);
  json["use_bidirectional_attention"] = true;
  EXPECT_THAT(ErrorOf(json), HasSubstr("use_bidirectional_attention"));
  json["hidden_activation"] = "relu";
  EXPECT_THAT(ErrorOf(json), HasSubstr("use_bidirectional_attention"));
}

TEST(FamiliesTest, Gemma3OfTransformers4And5) {
  Json json = GoldenConfig("gemma3");
  const DecoderConfig newer = Read(json);
  Json both = json;
  AddRopeSpellings(newer.ropes, &both);
  EXPECT_EQ(both["rope_parameters"], json["rope_parameters"]);
  EXPECT_EQ(Windows(newer), (std::vector<int64_t>{8, 8, 8, 8, 8, 0, 8}));
  EXPECT_EQ(Ropes(newer), (std::vector<int>{1, 1, 1, 1, 1, 0, 1}));
  json.erase("rope_parameters");
  json.erase("layer_types");
  json.erase("_sliding_window_pattern");
  json["sliding_window_pattern"] = 6;
  json["rope_theta"] = 1e6;
  json["rope_local_base_freq"] = 10000.0;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const DecoderConfig older = Read(json);
  // Each spelling makes the other.
  for (const char* key : {"rope_theta", "rope_local_base_freq"}) {
    EXPECT_EQ(both[key], json[key]) << key;
  }
  EXPECT_EQ(both["rope_scaling"]["factor"], 8.0);
  EXPECT_EQ(both["rope_scaling"]["rope_type"], "linear");
  Json again = json;
  AddRopeSpellings(older.ropes, &again);
  EXPECT_EQ(nlohmann::json(again["rope_parameters"]),
            nlohmann::json(both["rope_parameters"]));
  for (const DecoderConfig& c : {newer, older}) {
    ASSERT_EQ(c.ropes.size(), 2u);
    EXPECT_EQ(c.ropes[0].kind, RopeKind::kLinear);
    EXPECT_EQ(c.ropes[0].factor, 8.0);
    EXPECT_EQ(c.ropes[0].theta, 1e6);
    EXPECT_EQ(c.ropes[1].kind, RopeKind::kDefault);
    EXPECT_EQ(c.ropes[1].theta, 10000.0);
  }
  EXPECT_EQ(Windows(older), Windows(newer));
  EXPECT_EQ(Ropes(older), Ropes(newer));
}

// The text_config of gemma-3-4b-it says no more than this.
TEST(FamiliesTest, Gemma3sTextPartHasDefaults) {
  const Json text = {
      {"hidden_size", 2560},
      {"intermediate_size", 10240},
      {"model_type", "gemma3_text"},
      {"num_hidden_layers", 34},
      {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
      {"sliding_window", 1024}};
  const Json json = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                     {"eos_token_id", {1, 106}},
                     {"model_type", "gemma3"},
                     {"text_config", text},
                     {"vision_config", {{"hidden_size", 1152}}}};
  const DecoderConfig c = Read(json);
  EXPECT_EQ(c.vocab_size, 262208);
  EXPECT_EQ(c.num_attention_heads, 8);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.eos_token_id, absl::optional<int64_t>(1));
  EXPECT_EQ(c.other_eos_token_ids, std::vector<int64_t>({106}));
  EXPECT_EQ(c.bos_token_id, absl::optional<int64_t>(2));
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_TRUE(IsUnused(c, "vision_tower.vision_model.post_layernorm.weight"));
  EXPECT_TRUE(IsUnused(c, "multi_modal_projector.mm_soft_emb_norm.weight"));
  EXPECT_FALSE(IsUnused(c, "language_model.model.surprise.weight"));
  int64_t total = 0;
  for (const ParameterSpec& spec : ParameterSpecs(c)) total += spec.numel();
  EXPECT_EQ(total, 3880263168);  // as published: 3.88e9 without what sees
  // It is saved as what it is.
  const Json source = SourceKeys(c);
  EXPECT_EQ(source["model_type"], "gemma3_text");
  EXPECT_EQ(source["architectures"], Json({"Gemma3ForCausalLM"}));
  EXPECT_EQ(source["eos_token_id"], Json({1, 106}));
  EXPECT_FALSE(source.contains("vision_config"));
}

TEST(FamiliesTest, SmolLm3sLayersWithoutRope) {
  Json json = GoldenConfig("smollm3");
  EXPECT_EQ(Ropes(Read(json)), (std::vector<int>{0, -1, 0, -1}));
  json.erase("no_rope_layers");
  EXPECT_EQ(Ropes(Read(json)), (std::vector<int>{0, -1, 0, -1}));
  json.erase("no_rope_layer_interval");
  EXPECT_EQ(Ropes(Read(json)), (std::vector<int>{0, 0, 0, -1}));
  json["no_rope_layers"] = {1};
  EXPECT_THAT(ErrorOf(json), HasSubstr("no_rope_layers"));
}

TEST(FamiliesTest, NullKeyValueHeadsAreAsManyAsHeads) {
  for (const char* family : {"mistral", "qwen3", "smollm3"}) {
    Json json = GoldenConfig(family);
    json["num_key_value_heads"] = nullptr;
    EXPECT_EQ(Read(json).num_key_value_heads, json["num_attention_heads"])
        << family;
  }
}

TEST(FamiliesTest, TrainedPositionsOfOneRopeAndOfSeveral) {
  const Json yarn = {{"rope_type", "yarn"},
                     {"factor", 2.0},
                     {"original_max_position_embeddings", 64}};
  Json json = GoldenConfig("qwen3");
  json["rope_parameters"] = yarn;
  EXPECT_EQ(Read(json).ropes[0].trained_positions, 64);
  json["original_max_position_embeddings"] = 128;
  EXPECT_EQ(Read(json).ropes[0].trained_positions, 128);
  json = GoldenConfig("gemma3");
  json["rope_parameters"]["full_attention"] = yarn;
  json["original_max_position_embeddings"] = 128;
  EXPECT_EQ(Read(json).ropes[0].trained_positions, 64);
}

TEST(FamiliesTest, Olmo2HasNormsOnlyBehind) {
  const DecoderConfig c = Read(GoldenConfig("olmo2"));
  EXPECT_EQ(NamesInLayer(c, 1),
            (std::vector<std::string>{
                "model.layers.0.self_attn.q_proj.weight",
                "model.layers.0.self_attn.k_proj.weight",
                "model.layers.0.self_attn.v_proj.weight",
                "model.layers.0.self_attn.q_norm.weight",
                "model.layers.0.self_attn.k_norm.weight",
                "model.layers.0.self_attn.o_proj.weight",
                "model.layers.0.post_attention_layernorm.weight",
                "model.layers.0.mlp.gate_proj.weight",
                "model.layers.0.mlp.up_proj.weight",
                "model.layers.0.mlp.down_proj.weight",
                "model.layers.0.post_feedforward_layernorm.weight"}));
}

TEST(FamiliesTest, Phi3sRopes) {
  Json json = GoldenConfig("phi3");
  DecoderConfig c = Read(json);
  EXPECT_EQ(c.ropes[0].share, 0.5);
  EXPECT_EQ(NamesInLayer(c, 1).size(), 6u);
  // As Phi-4-mini's file of transformers 4 has it.
  json.erase("rope_parameters");
  json["rope_theta"] = 10000.0;
  json["partial_rotary_factor"] = 0.5;
  json["original_max_position_embeddings"] = 64;
  json["rope_scaling"] = {{"type", "yarn"},
                          {"short_factor", {1.0, 1.1, 1.3, 1.7}},
                          {"long_factor", {2.0, 3.0, 5.0, 9.0}}};
  c = Read(json);
  EXPECT_EQ(c.ropes[0].kind, RopeKind::kLongRope);
  EXPECT_EQ(c.ropes[0].share, 0.5);
  EXPECT_EQ(c.ropes[0].trained_positions, 64);
  EXPECT_EQ(c.ropes[0].factor, 4.0);
  EXPECT_NEAR(c.ropes[0].attention_factor, 1.15470054, 1e-7);
}

}  // namespace
}  // namespace capstan::decoder
