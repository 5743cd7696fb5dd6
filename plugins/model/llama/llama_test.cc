// SPDX-License-Identifier: Apache-2.0
//
// Config, files and bookkeeping; what it computes is compared with
// transformers in tests/golden.
#include "plugins/model/llama/llama.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plugins/model/llama/llama_weights.h"
#include "plugins/sdk/status.h"

namespace capstan {
namespace llama {
namespace {

using Json = nlohmann::json;

Config SmallSizes() {
  Config config;
  config.set_hidden_size(12);
  config.set_intermediate_size(10);
  config.set_num_hidden_layers(2);
  config.set_num_attention_heads(3);
  config.set_num_key_value_heads(1);
  config.set_vocab_size(7);
  return config;
}

std::string Read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
}

class LlamaTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/llama_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    mkdir(folder_.c_str(), 0700);
  }

  static std::unique_ptr<Llama> Make(const Config& config) {
    auto model = Llama::Create(config);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : nullptr;
  }

  static std::vector<float> Value(const Model& model, int index,
                                  uint64_t seed = 0) {
    std::vector<float> value(model.parameters()[index].numel());
    EXPECT_TRUE(
        model.InitialValue(index, seed, 0, value.size(), value.data()).ok());
    return value;
  }

  static std::vector<at::Tensor> BindTo(Model& model) {
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model.parameters().size(); ++i) {
      const std::vector<float> value = Value(model, i);
      parameters.push_back(at::tensor(value, at::kFloat)
                               .view(model.parameters()[i].shape)
                               .requires_grad_(true));
    }
    model.Bind(parameters);
    return parameters;
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

  // Changes config.json by `edit`, and expects an error that names the file
  // and all of `words`.
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

TEST_F(LlamaTest, ParametersAreHuggingFacesInOrderOfUse) {
  const auto model = Make(SmallSizes());
  const auto& specs = model->parameters();
  ASSERT_EQ(specs.size(), 2 + 2 * 9);
  EXPECT_EQ(specs[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(specs[0].shape, (std::vector<int64_t>{7, 12}));
  EXPECT_EQ(specs[LayerIndex(1, kKey)].name,
            "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(specs[LayerIndex(1, kKey)].shape, (std::vector<int64_t>{4, 12}));
  EXPECT_EQ(specs[LayerIndex(1, kKey)].unit, 2);
  EXPECT_EQ(specs[LayerIndex(0, kDown)].name,
            "model.layers.0.mlp.down_proj.weight");
  EXPECT_EQ(specs[LayerIndex(0, kDown)].shape, (std::vector<int64_t>{12, 10}));
  EXPECT_EQ(specs.back().name, "model.norm.weight");
  EXPECT_EQ(specs.back().unit, 3);
  EXPECT_EQ(model->units(), (std::vector<std::string>{"embed", "layers.0",
                                                      "layers.1", "head"}));
  Config untied = SmallSizes();
  untied.set_tie_word_embeddings(false);
  EXPECT_EQ(Make(untied)->parameters().back().name, "lm_head.weight");
}

TEST_F(LlamaTest, SmolLm2HasItsPublishedNumberOfParameters) {
  Config config;
  config.set_hidden_size(576);
  config.set_intermediate_size(1536);
  config.set_num_hidden_layers(30);
  config.set_num_attention_heads(9);
  config.set_num_key_value_heads(3);
  config.set_vocab_size(49152);
  int64_t total = 0;
  const auto model = Make(config);
  for (const ParameterSpec& spec : model->parameters()) {
    total += spec.numel();
  }
  EXPECT_EQ(total, 134515008);
}

TEST_F(LlamaTest, InitialValuesDependOnSeedAndNameAlone) {
  Config config = SmallSizes();
  config.set_initializer_range(0.5);
  const auto model = Make(config);
  const int query = LayerIndex(0, kQuery);
  const std::vector<float> whole = Value(*model, query, 3);
  EXPECT_NE(whole, Value(*model, query, 4));
  EXPECT_NE(whole, Value(*model, LayerIndex(1, kQuery), 3));
  std::vector<float> part(20);
  ASSERT_TRUE(model->InitialValue(query, 3, 11, 20, part.data()).ok());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + 11));
  double squares = 0.0;
  for (float x : whole) squares += x * x;
  EXPECT_NEAR(std::sqrt(squares / whole.size()), 0.5, 0.1);
  EXPECT_EQ(Value(*model, LayerIndex(1, kPostNorm)),
            std::vector<float>(12, 1.0f));
}

TEST_F(LlamaTest, BadSizesNameTheirField) {
  const auto expect = [](const std::string& field, auto edit) {
    Config config = SmallSizes();
    edit(config);
    const absl::Status status = Llama::Create(config).status();
    EXPECT_EQ(FieldOf(status), field) << status;
  };
  expect("hidden_size", [](Config& c) { c.clear_hidden_size(); });
  expect("hidden_size", [](Config& c) { c.set_hidden_size(13); });
  expect("vocab_size", [](Config& c) { c.set_vocab_size(-1); });
  expect("num_attention_heads", [](Config& c) {
    c.clear_num_attention_heads();
    c.clear_num_key_value_heads();
  });
  expect("num_key_value_heads",
         [](Config& c) { c.set_num_key_value_heads(2); });
  expect("head_dim", [](Config& c) { c.set_head_dim(5); });
  expect("head_dim", [](Config& c) { c.set_hidden_size(15); });
  expect("rms_norm_eps", [](Config& c) { c.set_rms_norm_eps(-1.0); });
  expect("eos_token_id", [](Config& c) { c.set_eos_token_id(7); });
  expect("num_hidden_layers",
         [](Config& c) { c.set_num_hidden_layers(int64_t{1} << 40); });
  expect("pretrained", [](Config& c) { c.set_pretrained("somewhere"); });
}

TEST_F(LlamaTest, FolderRoundTrip) {
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
  // Absent, it would become 1 in transformers.
  EXPECT_TRUE(json.at("bos_token_id").is_null());
  EXPECT_EQ(
      Json::parse(Read(folder_ + "/generation_config.json")).at("eos_token_id"),
      6);
}

TEST_F(LlamaTest, KeepsKeysThatItDoesNotKnow) {
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

TEST_F(LlamaTest, ReadsOlderAndNewerKeys) {
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
  EXPECT_EQ(config->rope_theta, 500.0);
  json.erase("rope_theta");
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"rope_theta", 600.0}, {"rope_type", "default"}};
  Write(path, json.dump());
  config = ConfigFromFolder(folder_);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_theta, 600.0);
}

TEST_F(LlamaTest, WhatIsNotImplementedNamesFileAndKey) {
  Save(SmallSizes());
  ExpectConfigError([](Json& j) { j["model_type"] = "gemma2"; },
                    {"model_type", "gemma2"});
  ExpectConfigError([](Json& j) { j["hidden_act"] = "gelu"; },
                    {"hidden_act", "gelu"});
  ExpectConfigError([](Json& j) { j["attention_bias"] = true; },
                    {"attention_bias"});
  ExpectConfigError([](Json& j) { j["mlp_bias"] = true; }, {"mlp_bias"});
  ExpectConfigError(
      [](Json& j) {
        j["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8.0}};
      },
      {"rope_scaling.rope_type", "llama3"});
  ExpectConfigError(
      [](Json& j) { j["rope_parameters"]["rope_type"] = "linear"; },
      {"rope_parameters.rope_type", "linear"});
  ExpectConfigError([](Json& j) { j["quantization_config"] = Json::object(); },
                    {"quantization_config"});
}

TEST_F(LlamaTest, WrongConfigsNameFileAndKey) {
  Save(SmallSizes());
  ExpectConfigError([](Json& j) { j.erase("hidden_size"); },
                    {"hidden_size", "missing"});
  ExpectConfigError([](Json& j) { j["vocab_size"] = "7"; }, {"vocab_size"});
  ExpectConfigError(
      [](Json& j) {
        j["hidden_size"] = 13;
        j.erase("head_dim");
      },
      {"hidden_size", "divisible"});
  ExpectConfigError([](Json& j) { j = Json::array(); }, {"JSON object"});
  Write(folder_ + "/config.json", "{");
  EXPECT_FALSE(CreateFromFolder().ok());
  std::remove((folder_ + "/config.json").c_str());
  EXPECT_NE(CreateFromFolder().message().find("config.json"),
            absl::string_view::npos);
}

TEST_F(LlamaTest, ConfigAndWeightsThatDisagreeNameTheTensor) {
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

TEST_F(LlamaTest, TiedCheckpointMayHoldTheHeadToo) {
  Config untied = SmallSizes();
  untied.set_tie_word_embeddings(false);
  Save(untied);
  Json json = Json::parse(Read(folder_ + "/config.json"));
  json["tie_word_embeddings"] = true;
  Write(folder_ + "/config.json", json.dump());
  EXPECT_TRUE(CreateFromFolder().ok()) << CreateFromFolder();
}

TEST_F(LlamaTest, RunsEachUnitOnceInOrder) {
  class Recorder final : public UnitRunner {
   public:
    at::Tensor Run(int unit, const at::Tensor& input,
                   const Body& body) override {
      units.push_back(unit);
      return body(input);
    }
    std::vector<int> units;
  };
  const auto model = Make(SmallSizes());
  BindTo(*model);
  Recorder runner;
  const at::Tensor ids = at::tensor({1, 2, 3}, at::kLong).view({1, 3});
  EXPECT_EQ(model->Logits({ids}, runner).sizes(), at::IntArrayRef({1, 3, 7}));
  EXPECT_EQ(runner.units, (std::vector<int>{0, 1, 2, 3}));
  runner.units.clear();
  EXPECT_TRUE(model->CrossEntropySum({ids}, ids, runner).requires_grad());
  EXPECT_EQ(runner.units, (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(LlamaTest, FrozenEmbeddingLeavesTheRestTrainable) {
  const auto model = Make(SmallSizes());
  std::vector<at::Tensor> parameters = BindTo(*model);
  PlainRunner runner;
  const at::Tensor ids = at::tensor({1, 2, 3}, at::kLong).view({1, 3});
  model->CrossEntropySum({ids}, ids, runner).backward();
  const at::Tensor wanted = parameters[LayerIndex(0, kGate)].grad().clone();
  for (at::Tensor& p : parameters) p.mutable_grad().reset();
  parameters[kEmbedding].requires_grad_(false);
  model->CrossEntropySum({ids}, ids, runner).backward();
  EXPECT_TRUE(parameters[LayerIndex(0, kGate)].grad().equal(wanted));
  EXPECT_FALSE(parameters[kEmbedding].grad().defined());
}

TEST_F(LlamaTest, LogitsAndLossGiveTheSameGradients) {
  const auto model = Make(SmallSizes());
  std::vector<at::Tensor> parameters = BindTo(*model);
  PlainRunner runner;
  const at::Tensor ids = at::tensor({1, 2, 3, 2}, at::kLong).view({2, 2});
  model->CrossEntropySum({ids}, ids, runner).backward();
  std::vector<at::Tensor> wanted;
  for (at::Tensor& p : parameters) {
    wanted.push_back(p.grad());
    p.mutable_grad().reset();
  }
  const at::Tensor logs = model->Logits({ids}, runner).log_softmax(-1);
  logs.gather(2, ids.unsqueeze(2)).sum().neg().backward();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(parameters[i].grad().allclose(wanted[i], 1e-4, 1e-6))
        << model->parameters()[i].name;
  }
}

TEST_F(LlamaTest, CacheHasItsLimits) {
  const auto model = Make(SmallSizes());
  BindTo(*model);
  EXPECT_FALSE(model->NewCache(1, 2049).ok());
  EXPECT_FALSE(model->NewCache(0, 5).ok());
  const auto cache = model->NewCache(1, 2048);
  ASSERT_TRUE(cache.ok());
  EXPECT_EQ((*cache)->length(), 0);
}

}  // namespace
}  // namespace llama
}  // namespace capstan
