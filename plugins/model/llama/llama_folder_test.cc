// SPDX-License-Identifier: Apache-2.0
//
// Hugging Face folders: reading, writing, and errors.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/status.h"
#include "plugins/model/llama/llama.h"
#include "plugins/model/llama/llama_testing.h"

namespace capstan::llama {
namespace {

using Json = nlohmann::json;

std::string Read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

class LlamaFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/llama_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    mkdir(folder_.c_str(), 0700);
  }

  // Saves a model of the sizes to folder_; `skip` names a tensor to leave out,
  // `change` may alter the shape and dtype of each.
  void Save(const Config& sizes, const std::string& skip = "",
            const std::function<void(const std::string&, std::vector<int64_t>*,
                                     c10::ScalarType*)>& change = nullptr) {
    const auto model = Make(sizes);
    ASSERT_TRUE(model->SaveConfig(folder_, c10::ScalarType::Float).ok());
    std::remove((folder_ + "/model.safetensors").c_str());
    auto writer = SafetensorsWriter::Create(folder_ + "/model.safetensors");
    ASSERT_TRUE(writer.ok()) << writer.status();
    std::vector<std::vector<float>> values;
    std::vector<int64_t> bytes;
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      const ParameterSpec& spec = model->parameters()[i];
      if (spec.name == skip) continue;
      std::vector<int64_t> shape = spec.shape;
      c10::ScalarType dtype = c10::ScalarType::Float;
      if (change) change(spec.name, &shape, &dtype);
      (*writer)->Declare(spec.name, dtype, shape);
      int64_t size = c10::elementSize(dtype);
      for (int64_t d : shape) size *= d;
      values.push_back(Value(*model, i, 5));
      values.back().resize(size, 1.0f);
      bytes.push_back(size);
    }
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_TRUE((*writer)->Append(values[i].data(), bytes[i]).ok());
    }
    const absl::Status closed = (*writer)->Close();
    ASSERT_TRUE(closed.ok()) << closed;
  }

  absl::Status CreateFromFolder() const {
    Config config;
    config.set_pretrained(folder_);
    return Llama::Create(config).status();
  }

  // Changes config.json by `edit`, and expects an error that names the file and
  // all of `words`.
  void ExpectConfigError(const std::function<void(Json&)>& edit,
                         const std::vector<std::string>& words) {
    const std::string path = folder_ + "/config.json", before = Read(path);
    Json json = Json::parse(before);
    edit(json);
    Write(path, json.dump());
    const absl::Status status = CreateFromFolder();
    Write(path, before);
    EXPECT_EQ(FieldOf(status), "pretrained") << status;
    EXPECT_NE(status.message().find(path), absl::string_view::npos) << status;
    for (const std::string& word : words) {
      EXPECT_NE(status.message().find(word), absl::string_view::npos)
          << status << " lacks " << word;
    }
  }

  std::string folder_;
};

TEST_F(LlamaFolderTest, FolderRoundTrip) {
  Config config = SmallSizes();
  config.set_rope_theta(1234.5);
  config.set_eos_token_id(6);
  Save(config);
  Config from;
  from.set_pretrained(folder_);
  const auto model = Make(from), source = Make(config);
  EXPECT_EQ(model->eos_token(), 6);
  EXPECT_EQ(model->max_positions(), 2048);
  for (size_t i = 0; i < source->parameters().size(); ++i) {
    EXPECT_EQ(model->parameters()[i].name, source->parameters()[i].name);
    EXPECT_EQ(Value(*model, i), Value(*source, i, 5));
  }
  const Json json = Json::parse(Read(folder_ + "/config.json"));
  EXPECT_EQ(json["architectures"], Json({"LlamaForCausalLM"}));
  EXPECT_EQ(json["rope_theta"], 1234.5);
  EXPECT_EQ(json["rope_parameters"]["rope_theta"], 1234.5);
  EXPECT_EQ(json["torch_dtype"], "float32");
  EXPECT_EQ(json["head_dim"], 4);
  // If absent, transformers would set it to 1.
  EXPECT_TRUE(json.at("bos_token_id").is_null());
  EXPECT_EQ(
      Json::parse(Read(folder_ + "/generation_config.json")).at("eos_token_id"),
      6);
}

TEST_F(LlamaFolderTest, AGreaterVocabularyGetsTheMeanOfTheRows) {
  for (const bool tied : {true, false}) {
    Config config = SmallSizes();
    config.set_tie_word_embeddings(tied);
    Save(config);
    Config from;
    from.set_pretrained(folder_);
    from.set_vocab_size(config.vocab_size() + 3);
    const auto model = Make(from), source = Make(config);
    EXPECT_EQ(model->vocab_size(), config.vocab_size() + 3);
    const int64_t width = config.hidden_size(), rows = config.vocab_size();
    for (size_t i = 0; i < source->parameters().size(); ++i) {
      const std::vector<float> old = Value(*source, i, 5);
      std::vector<float> got = Value(*model, i);
      if (source->parameters()[i].shape[0] == rows &&
          source->parameters()[i].shape.size() == 2) {
        ASSERT_EQ(got.size(), (rows + 3) * width);
        for (int64_t c = 0; c < width; ++c) {
          double sum = 0.0;
          for (int64_t r = 0; r < rows; ++r) sum += old[r * width + c];
          for (int64_t r = rows; r < rows + 3; ++r) {
            EXPECT_NEAR(got[r * width + c], sum / rows, 1e-6);
          }
        }
        // A part of old and new rows, as for a shard.
        std::vector<float> part(2 * width);
        ASSERT_TRUE(model
                        ->InitialValue(i, 0, (rows - 1) * width - 1, 2 * width,
                                       part.data())
                        .ok());
        for (int64_t e = 0; e < 2 * width; ++e) {
          EXPECT_EQ(part[e], got[(rows - 1) * width - 1 + e]);
        }
        got.resize(old.size());
      }
      EXPECT_EQ(got, old);
    }
  }
  Config less;
  less.set_pretrained(folder_);
  less.set_vocab_size(1);
  EXPECT_EQ(FieldOf(Llama::Create(less).status()), "vocab_size");
}

TEST_F(LlamaFolderTest, KeepsKeysThatItDoesNotKnow) {
  Save(SmallSizes());
  Json json = Json::parse(Read(folder_ + "/config.json"));
  json["is_llama_config"] = true;
  json["eos_token_id"] = {2, 3};
  Write(folder_ + "/config.json", json.dump());
  Write(folder_ + "/generation_config.json", R"({"top_k": 5})");
  Config config;
  config.set_pretrained(folder_);
  const auto model = Make(config);
  EXPECT_EQ(model->eos_token(), 2);
  ASSERT_TRUE(model->SaveConfig(folder_, c10::ScalarType::BFloat16).ok());
  json = Json::parse(Read(folder_ + "/config.json"));
  EXPECT_EQ(json["is_llama_config"], true);
  EXPECT_EQ(json["eos_token_id"], Json({2, 3}));
  EXPECT_EQ(json["dtype"], "bfloat16");
  EXPECT_EQ(Json::parse(Read(folder_ + "/generation_config.json"))["top_k"], 5);
}

TEST_F(LlamaFolderTest, ReadsOlderAndNewerKeys) {
  Save(SmallSizes());
  const std::string path = folder_ + "/config.json";
  Json json = Json::parse(Read(path));
  json.erase("rope_parameters");
  json.erase("dtype");
  json["rope_scaling"] = nullptr;
  json["rope_theta"] = 500.0;
  Write(path, json.dump());
  auto config = ConfigFromFolder(folder_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ropes[0].theta, 500.0);
  json.erase("rope_theta");
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"rope_theta", 600.0}, {"rope_type", "default"}};
  Write(path, json.dump());
  config = ConfigFromFolder(folder_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->ropes[0].theta, 600.0);
}

TEST_F(LlamaFolderTest, NumbersThatNobodyReadsMayBeOfAnySize) {
  Save(SmallSizes());
  for (const char* name : {"/config.json", "/generation_config.json"}) {
    std::string text = Read(folder_ + name);
    text.insert(text.rfind('}'),
                ", \"a\": 18446744073709551616, \"b\": [1e400]");
    Write(folder_ + name, text);
  }
  EXPECT_TRUE(CreateFromFolder().ok()) << CreateFromFolder();
}

TEST_F(LlamaFolderTest, WhatIsNotImplementedNamesFileAndKey) {
  Save(SmallSizes());
  ExpectConfigError([](Json& j) { j["model_type"] = "gemma2"; },
                    {"model_type", "gemma2"});
  ExpectConfigError([](Json& j) { j["hidden_act"] = "gelu"; },
                    {"hidden_act", "gelu"});
  ExpectConfigError([](Json& j) { j["model_type"] = "gpt2"; },
                    {"model_type \"gpt2\" is not implemented; known are",
                     "\"gemma3\"", "\"llama\"", "\"qwen3_moe\""});
  ExpectConfigError([](Json& j) { j.erase("model_type"); },
                    {"model_type must be one of", "missing"});
  ExpectConfigError([](Json& j) { j["attention_dropout"] = 0.1; },
                    {"attention_dropout 0.1 is not implemented"});
  ExpectConfigError(
      [](Json& j) {
        j["rope_scaling"] = {{"rope_type", "spiral"}, {"factor", 8.0}};
      },
      {"rope_scaling.rope_type", "spiral", "\"llama3\""});
  ExpectConfigError(
      [](Json& j) { j["rope_parameters"]["rope_type"] = "linear"; },
      {"rope_parameters.factor is missing"});
  ExpectConfigError(
      [](Json& j) {
        j["rope_parameters"]["mrope_section"] = {1, 1};
      },
      {"rope_parameters.mrope_section is not known"});
  ExpectConfigError([](Json& j) { j["quantization_config"] = Json::object(); },
                    {"quantization_config"});
}

TEST_F(LlamaFolderTest, WrongConfigsNameFileAndKey) {
  Save(SmallSizes());
  ExpectConfigError([](Json& j) { j.erase("hidden_size"); },
                    {"hidden_size", "missing"});
  ExpectConfigError([](Json& j) { j["vocab_size"] = "7"; }, {"vocab_size"});
  ExpectConfigError([](Json& j) { j["vocab_size"] = 18446744073709551615u; },
                    {"vocab_size must be an integer below 2^63"});
  ExpectConfigError([](Json& j) { j["eos_token_id"] = 1e30; },
                    {"eos_token_id must be a token id"});
  ExpectConfigError(
      [](Json& j) {
        j["hidden_size"] = 13;
        j.erase("head_dim");
      },
      {"hidden_size", "divisible"});
  ExpectConfigError([](Json& j) { j["num_hidden_layers"] = 2147483647; },
                    {"num_hidden_layers must be from 1 to 16384"});
  ExpectConfigError(
      [](Json& j) {
        j["hidden_size"] = 2147483646;
        j["intermediate_size"] = 2147483647;
        j["head_dim"] = 2147483646;
      },
      {"hidden_size makes, with the other sizes, a model of"});
  ExpectConfigError([](Json& j) { j = Json::array(); }, {"JSON object"});
  Write(folder_ + "/config.json", "{");
  EXPECT_FALSE(CreateFromFolder().ok());
  std::remove((folder_ + "/config.json").c_str());
  EXPECT_NE(CreateFromFolder().message().find("config.json"),
            absl::string_view::npos);
}

TEST_F(LlamaFolderTest, ConfigAndWeightsThatDisagreeNameTheTensor) {
  Save(SmallSizes(), "", [](const std::string& name, auto* shape, auto*) {
    if (name == "model.layers.1.mlp.up_proj.weight") *shape = {12, 10};
  });
  const absl::Status shapes = CreateFromFolder();
  for (const char* word : {"model.layers.1.mlp.up_proj.weight", "[12, 10]",
                           "[10, 12]", "model.safetensors", "config.json"}) {
    EXPECT_NE(shapes.message().find(word), absl::string_view::npos) << shapes;
  }
  Save(SmallSizes(), "model.norm.weight");
  EXPECT_NE(CreateFromFolder().message().find("'model.norm.weight'"),
            absl::string_view::npos);
  Save(SmallSizes(), "", [](const std::string& name, auto*, auto* dtype) {
    if (name == "model.norm.weight") *dtype = c10::ScalarType::Long;
  });
  EXPECT_NE(CreateFromFolder().message().find("must be F32, F16 or BF16"),
            absl::string_view::npos);
  // One layer more than config.json says.
  Save(SmallSizes());
  Json json = Json::parse(Read(folder_ + "/config.json"));
  json["num_hidden_layers"] = 1;
  Write(folder_ + "/config.json", json.dump());
  EXPECT_NE(CreateFromFolder().message().find("model.layers.1."),
            absl::string_view::npos);
}

TEST_F(LlamaFolderTest, TiedCheckpointMayHoldTheHeadToo) {
  Config untied = SmallSizes();
  untied.set_tie_word_embeddings(false);
  Save(untied);
  Json json = Json::parse(Read(folder_ + "/config.json"));
  json["tie_word_embeddings"] = true;
  Write(folder_ + "/config.json", json.dump());
  EXPECT_TRUE(CreateFromFolder().ok()) << CreateFromFolder();
}

}  // namespace
}  // namespace capstan::llama
