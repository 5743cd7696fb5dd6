// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/lora.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/lib/write_adapter_for_test.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string NewFolder() {
  static int made = 0;
  const std::string folder =
      ::testing::TempDir() + "lora" + std::to_string(made++);
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

absl::StatusOr<AdapterSpec> ReadText(const std::string& text) {
  const std::string folder = NewFolder();
  std::ofstream(folder + "/adapter_config.json") << text;
  return ReadAdapterConfig(folder);
}

// ReadAdapterConfig's result for a valid config modified by `change`.
std::string Refusal(const std::string& change) {
  Json json = {{"peft_type", "LORA"}, {"target_modules", {"q_proj"}}};
  json.update(Json::parse(change));
  const auto spec = ReadText(json.dump());
  EXPECT_FALSE(spec.ok()) << change;
  const std::string message(spec.status().message());
  EXPECT_THAT(message, HasSubstr("/adapter_config.json: "));
  return message;
}

TEST(LoraTest, Names) {
  const std::string module = "model.layers.3.mlp.up_proj";
  const std::string a = AdapterParameterName(module, /*is_b=*/false);
  EXPECT_EQ(a, "base_model.model.model.layers.3.mlp.up_proj.lora_A.weight");
  EXPECT_EQ(ParseAdapterName(a)->module, module);
  EXPECT_FALSE(ParseAdapterName(a)->is_b);
  EXPECT_TRUE(ParseAdapterName(AdapterParameterName(module, true))->is_b);
  EXPECT_TRUE(IsAdapterParameter(a));
  const std::string magnitude = MagnitudeName(module);
  EXPECT_EQ(
      magnitude,
      "base_model.model.model.layers.3.mlp.up_proj.lora_magnitude_vector");
  EXPECT_EQ(ParseAdapterName(magnitude)->module, module);
  EXPECT_TRUE(ParseAdapterName(magnitude)->is_magnitude);
  EXPECT_FALSE(ParseAdapterName(magnitude)->is_b);
  EXPECT_FALSE(ParseAdapterName(a)->is_magnitude);
  EXPECT_FALSE(IsAdapterParameter(module + ".weight"));
  EXPECT_FALSE(IsAdapterParameter("base_model.model.model.norm.weight"));
  EXPECT_FALSE(IsAdapterParameter("base_model.model..lora_A.weight"));
}

TEST(LoraTest, Scale) {
  LoraSpec spec;
  spec.rank = 16;
  spec.alpha = 8.0;
  EXPECT_EQ(spec.scale(), 0.5);
  spec.rslora = true;
  EXPECT_EQ(spec.scale(), 2.0);
}

TEST(LoraTest, DefaultsArePefts) {
  const auto spec =
      ReadText(R"({"peft_type": "LORA", "target_modules": ["q_proj"]})");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->rank, 8);
  EXPECT_EQ(spec->alpha, 8.0);
  EXPECT_EQ(spec->dropout, 0.0);
  EXPECT_FALSE(spec->rslora);
}

TEST(LoraTest, WritesWhatItReads) {
  LoraSpec spec;
  spec.rank = 5;
  spec.alpha = 2.5;
  spec.dropout = 0.05;
  spec.rslora = true;
  spec.dora = true;
  spec.target_modules = {"q_proj", "self_attn.v_proj"};
  const std::string folder = NewFolder();
  const std::string a = AdapterParameterName("m", false);
  const std::string b = AdapterParameterName("m", true);
  const absl::Status written =
      WriteAdapter(folder, spec, "org/base",
                   {{a, at::arange(10).to(at::kBFloat16).view({5, 2})},
                    {b, at::arange(15).to(at::kFloat).view({5, 3}).t()}});
  ASSERT_TRUE(written.ok()) << written;
  const auto read = ReadAdapterConfig(folder);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->rank, 5);
  EXPECT_EQ(read->alpha, 2.5);
  EXPECT_EQ(read->dropout, 0.05);
  EXPECT_TRUE(read->rslora);
  EXPECT_TRUE(read->dora);
  EXPECT_EQ(read->target_modules, spec.target_modules);
  EXPECT_EQ(read->pretrained, folder);

  const auto tensors =
      SafetensorsReader::Open(folder + "/adapter_model.safetensors");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ((*tensors)->metadata().at("format"), "pt");
  EXPECT_EQ((*tensors)->tensors().at(a).dtype, at::kFloat);
  EXPECT_EQ((*tensors)->tensors().at(b).shape, (std::vector<int64_t>{3, 5}));
  float first[2];
  ASSERT_TRUE((*tensors)->ReadFloats(b, 0, 2, first).ok());
  EXPECT_EQ(first[1], 3.0f);
}

TEST(LoraTest, ModulesToSave) {
  AdapterSpec spec;
  spec.target_modules = {"q_proj"};
  Json json = Json::parse(AdapterConfigJson(spec, ""));
  EXPECT_FALSE(json.contains("ensure_weight_tying"));
  spec.modules_to_save = {"embed_tokens", "lm_head"};
  spec.ties = true;
  json = Json::parse(AdapterConfigJson(spec, ""));
  EXPECT_EQ(json["modules_to_save"], Json({"embed_tokens", "lm_head"}));
  EXPECT_EQ(json["ensure_weight_tying"], true);
  const auto read = ReadText(json.dump());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->modules_to_save, spec.modules_to_save);
  EXPECT_TRUE(read->ties);
  EXPECT_EQ(SavedParameterName("lm_head.weight"),
            "base_model.model.lm_head.weight");
  EXPECT_THAT(Refusal(R"({"modules_to_save": "lm_head"})"),
              HasSubstr("modules_to_save must be a list"));
  EXPECT_THAT(Refusal(R"({"modules_to_save": [3]})"),
              HasSubstr("modules_to_save must hold names"));
}

TEST(LoraTest, AScoreIsPeftsSequenceClassification) {
  AdapterSpec spec;
  spec.target_modules = {"q_proj"};
  spec.modules_to_save = {"score"};
  Json json = Json::parse(AdapterConfigJson(spec, ""));
  EXPECT_EQ(json["task_type"], "SEQ_CLS");
  // PEFT's own files have both of its names for such heads.
  json["modules_to_save"] = {"classifier", "score"};
  const auto read = ReadText(json.dump());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->modules_to_save, spec.modules_to_save);
}

TEST(LoraTest, ConfigHasPeftsKeys) {
  AdapterSpec spec;
  spec.target_modules = {"all-linear"};
  const Json json = Json::parse(AdapterConfigJson(spec, ""));
  EXPECT_EQ(json["target_modules"], "all-linear");
  EXPECT_EQ(json["lora_alpha"].dump(), "8");
  EXPECT_EQ(json["task_type"], "CAUSAL_LM");
  for (const char* key :
       {"base_model_name_or_path", "modules_to_save", "layers_to_transform",
        "layers_pattern", "revision"}) {
    ASSERT_TRUE(json.contains(key)) << key;
    EXPECT_TRUE(json[key].is_null()) << key;
  }
  for (const char* key : {"fan_in_fan_out", "use_rslora", "use_dora"}) {
    EXPECT_EQ(json.at(key), false) << key;
  }
  EXPECT_EQ(json.at("inference_mode"), true);
  EXPECT_EQ(json.at("init_lora_weights"), true);
  EXPECT_EQ(json.at("bias"), "none");
  EXPECT_EQ(json.at("rank_pattern"), Json::object());
  EXPECT_EQ(json.at("alpha_pattern"), Json::object());
  EXPECT_EQ(
      Json::parse(AdapterConfigJson(spec, "a"))["base_model_name_or_path"],
      "a");
}

TEST(LoraTest, WhatItDoesNotHaveIsNamed) {
  for (const char* key : {"lora_bias", "fan_in_fan_out", "use_bdlora"}) {
    EXPECT_THAT(Refusal("{\"" + std::string(key) + "\": true}"),
                HasSubstr(std::string(key) + " is not implemented"));
  }
  EXPECT_THAT(Refusal(R"({"layer_replication": [[0, 4]]})"),
              HasSubstr("layer_replication is not implemented"));
  EXPECT_THAT(Refusal(R"({"rank_pattern": {"q_proj": 4}})"),
              HasSubstr("rank_pattern is not implemented"));
  EXPECT_THAT(Refusal(R"({"alpha_pattern": {"q_proj": 4}})"),
              HasSubstr("alpha_pattern"));
  EXPECT_THAT(Refusal(R"({"bias": "all"})"),
              HasSubstr("bias must be \"none\", is \"all\""));
  EXPECT_THAT(Refusal(R"({"init_lora_weights": "pissa"})"),
              HasSubstr("init_lora_weights"));
  EXPECT_THAT(Refusal(R"({"target_modules": ".*proj"})"),
              HasSubstr("regular expressions are not implemented"));
}

TEST(LoraTest, BrokenConfigsAreErrors) {
  EXPECT_THAT(Refusal(R"({"peft_type": "IA3"})"), HasSubstr("peft_type"));
  EXPECT_THAT(Refusal(R"({"r": 0})"), HasSubstr("r must be"));
  EXPECT_THAT(Refusal(R"({"r": "8"})"), HasSubstr("r must be"));
  EXPECT_THAT(Refusal(R"({"r": 18446744073709551615})"),
              HasSubstr("r must be an integer"));
  EXPECT_THAT(Refusal(R"({"lora_alpha": "8"})"),
              HasSubstr("lora_alpha must be a number, is \"8\""));
  EXPECT_THAT(Refusal(R"({"lora_dropout": 1.5})"), HasSubstr("lora_dropout"));
  EXPECT_THAT(Refusal(R"({"use_rslora": 1})"), HasSubstr("use_rslora"));
  EXPECT_THAT(Refusal(R"({"target_modules": []})"),
              HasSubstr("target_modules"));
  EXPECT_THAT(Refusal(R"({"target_modules": [3]})"),
              HasSubstr("must hold names"));
  EXPECT_FALSE(ReadText("[]").ok());
  EXPECT_FALSE(ReadText("{\"peft_type\": ").ok());
  EXPECT_FALSE(ReadText("\"\xff\"").ok());
  EXPECT_THAT(std::string(ReadAdapterConfig("/nowhere").status().message()),
              HasSubstr("/nowhere/adapter_config.json"));
}

}  // namespace
}  // namespace capstan
