// SPDX-License-Identifier: Apache-2.0
//
// The plugin: what it opens, makes and adapts; tests/golden compares the
// results with transformers.
#include "plugins/model/decoder/decoder.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "absl/strings/strip.h"
#include "base/status.h"
#include "kernels/context/work_recorder.h"
#include "plugins/model/common/plan_testing.h"
#include "plugins/model/decoder/decoder_testing.h"
#include "plugins/objective/common/decode_loop.h"
#include "plugins/sdk/lib/prompt_batch.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/token_model.h"

namespace capstan::decoder {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Decoder> Make(const Config& config) {
  auto model = Decoder::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

Config RandomOf(const std::string& family) {
  Config config;
  config.set_config("tests/golden/testdata/" + family + "/config.json");
  return config;
}

Config PretrainedIn(const std::string& folder) {
  Config config;
  config.set_pretrained(folder);
  return config;
}

std::vector<float> Value(const Model& model, int index) {
  std::vector<float> value(model.parameters()[index].numel());
  EXPECT_TRUE(model.InitialValue(index, 3, 0, value.size(), value.data()).ok());
  return value;
}

TEST(DecoderTest, RandomWeightsOfAConfigFile) {
  Config config = RandomOf("qwen3");
  EXPECT_EQ(Make(config)->vocab_size(), 512);
  config.set_vocab_size(99);
  const auto model = Make(config);
  EXPECT_EQ(model->vocab_size(), 99);
  EXPECT_EQ(Value(*model, 1), std::vector<float>(64, 1.0f));
  // Gemma's norms are 1 + weight.
  EXPECT_EQ(Value(*Make(RandomOf("gemma2")), 1), std::vector<float>(64, 0.0f));
  const std::string folder = TestFolder("saved");
  ASSERT_TRUE(model->SaveConfig(folder, at::kBFloat16).ok());
  const Json saved = Json::parse(std::ifstream(folder + "/config.json"));
  EXPECT_EQ(saved["vocab_size"], 99);
  EXPECT_EQ(saved["model_type"], "qwen3");
  EXPECT_EQ(saved["dtype"], "bfloat16");
  EXPECT_EQ(saved["architectures"], Json({"Qwen3ForCausalLM"}));
}

TEST(DecoderTest, BadConfigsNameTheirField) {
  const auto expect = [](const Config& config, const std::string& field,
                         const std::string& words) {
    const absl::Status status = Decoder::Create(config).status();
    EXPECT_EQ(FieldOf(status), field) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  expect({}, "pretrained", "is missing");
  Config both = RandomOf("qwen3");
  both.set_pretrained("somewhere");
  expect(both, "pretrained", "is set beside `config`");
  Config absent;
  absent.set_config("nowhere/config.json");
  expect(absent, "config", "nowhere/config.json");
  Config small = RandomOf("qwen3");
  small.set_vocab_size(2);
  expect(small, "eos_token_id", "must be below vocab_size");
  expect(PretrainedIn("nowhere"), "pretrained", "nowhere");
}

// Writes what a model that sees images would: the golden text model's tensors
// as `rename` calls them, and one that sees.
std::string WriteWhole(
    const std::string& name,
    const std::function<std::string(const std::string&)>& rename) {
  const std::string text = "tests/golden/testdata/gemma3";
  const std::string folder = TestFolder(name);
  const Json whole = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                      {"model_type", "gemma3"},
                      {"text_config", GoldenConfig("gemma3")},
                      {"vision_config", {{"hidden_size", 4}}}};
  std::ofstream(folder + "/config.json") << whole.dump();
  const auto from = SafetensorsReader::Open(text + "/model.safetensors");
  EXPECT_TRUE(from.ok());
  std::remove((folder + "/model.safetensors").c_str());
  auto to = SafetensorsWriter::Create(folder + "/model.safetensors");
  EXPECT_TRUE(to.ok());
  for (const auto& [tensor, entry] : (*from)->tensors()) {
    (*to)->Declare(rename(tensor), entry.dtype, entry.shape);
  }
  const std::vector<float> eye = {1.0f, 2.0f};
  (*to)->Declare("vision_tower.vision_model.post_layernorm.weight",
                 c10::ScalarType::Float, {2});
  for (const auto& [tensor, entry] : (*from)->tensors()) {
    EXPECT_TRUE((*to)->Append(entry.data, entry.bytes).ok());
  }
  EXPECT_TRUE((*to)->Append(eye.data(), 8).ok());
  EXPECT_TRUE((*to)->Close().ok());
  return folder;
}

TEST(DecoderTest, TheTextPartOfAModelThatSees) {
  const auto wanted = Make(PretrainedIn("tests/golden/testdata/gemma3"));
  for (const std::string& start : {std::string("language_model.model."),
                                   std::string("model.language_model.")}) {
    const std::string folder =
        WriteWhole(start.substr(0, 5), [&](const std::string& name) {
          return start + std::string(absl::StripPrefix(name, "model."));
        });
    const auto model = Make(PretrainedIn(folder));
    ASSERT_NE(model, nullptr);
    ASSERT_EQ(model->parameters().size(), wanted->parameters().size());
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      EXPECT_EQ(model->parameters()[i].name, wanted->parameters()[i].name);
      EXPECT_EQ(Value(*model, static_cast<int>(i)),
                Value(*wanted, static_cast<int>(i)));
    }
    Config grown = PretrainedIn(folder);
    grown.set_vocab_size(514);
    EXPECT_EQ(Value(*Make(grown), 0).size(), 514u * 64u);
    const std::string saved = TestFolder("saved");
    ASSERT_TRUE(model->SaveConfig(saved, at::kFloat).ok());
    const Json json = Json::parse(std::ifstream(saved + "/config.json"));
    EXPECT_EQ(json["model_type"], "gemma3_text");
    EXPECT_EQ(json["architectures"], Json({"Gemma3ForCausalLM"}));
    EXPECT_FALSE(json.contains("vision_config"));
    EXPECT_EQ(json["hidden_size"], 64);
  }
}

std::set<std::string> AdaptedModules(const std::string& family) {
  const auto model = Make(RandomOf(family));
  LoraSpec spec;
  spec.target_modules = {"all-linear"};
  const size_t base = model->parameters().size();
  EXPECT_TRUE(model->AddLora(spec).ok());
  std::set<std::string> modules;
  for (size_t i = base; i < model->parameters().size(); ++i) {
    const std::string& name = model->parameters()[i].name;
    const std::string end = name.substr(0, name.rfind(".lora_"));
    modules.insert(end.substr(end.rfind('.') + 1));
  }
  return modules;
}

TEST(DecoderTest, AllLinearModulesAsPeftNamesThem) {
  EXPECT_THAT(AdaptedModules("phi3"),
              ::testing::ElementsAre("down_proj", "gate_up_proj", "o_proj",
                                     "qkv_proj"));
  EXPECT_THAT(AdaptedModules("gemma3"),
              ::testing::ElementsAre("down_proj", "gate_proj", "k_proj",
                                     "o_proj", "q_proj", "up_proj", "v_proj"));
  EXPECT_THAT(AdaptedModules("qwen3_moe"),
              ::testing::ElementsAre("k_proj", "o_proj", "q_proj", "v_proj"));
}

TEST(DecoderTest, AnAdapterCanBeSwitchedOff) {
  for (const char* family : {"phi3", "qwen3", "gemma2", "qwen3_moe"}) {
    SCOPED_TRACE(family);
    const auto plain = Make(RandomOf(family)), model = Make(RandomOf(family));
    EXPECT_FALSE(model->has_adapter());
    LoraSpec spec;
    spec.target_modules = {"all-linear"};
    ASSERT_TRUE(model->AddLora(spec).ok());
    EXPECT_TRUE(model->has_adapter());
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      const auto& shape = model->parameters()[i].shape;
      parameters.push_back(i < plain->parameters().size()
                               ? at::randn(shape) * 0.1
                               : at::randn(shape) * 0.3);
    }
    model->Bind(parameters);
    parameters.resize(plain->parameters().size());
    plain->Bind(parameters);
    const at::AutoGradMode no_gradients(false);
    PlainRunner runner;
    const at::Tensor ids = at::randint(512, {2, 6}, at::kLong);
    const at::Tensor without = plain->Logits({ids}, runner);
    EXPECT_FALSE(model->Logits({ids}, runner).allclose(without, 1e-3, 1e-3));
    model->SetAdapterEnabled(false);
    EXPECT_TRUE(model->Logits({ids}, runner).equal(without));
    model->SetAdapterEnabled(true);
    EXPECT_FALSE(model->Logits({ids}, runner).allclose(without, 1e-3, 1e-3));
  }
}

TEST(DecoderTest, AllEndTokensOfBothFiles) {
  Json json = GoldenConfig("qwen3");
  json["eos_token_id"] = {7, 9, 100000};
  const std::string folder = TestFolder("ends");
  std::ofstream(folder + "/config.json") << json.dump();
  std::ofstream(folder + "/generation_config.json")
      << Json({{"eos_token_id", {9, 11}}}).dump();
  Config config;
  config.set_config(folder + "/config.json");
  const auto model = Make(config);
  EXPECT_EQ(EndTokensOf(*model), std::vector<int64_t>({7, 9, 11}));
  ASSERT_TRUE(model->SaveConfig(folder, at::kFloat).ok());
  const Json saved = Json::parse(std::ifstream(folder + "/config.json"));
  EXPECT_EQ(saved["eos_token_id"], json["eos_token_id"]);
}

// The golden Phi-3 with other frequencies beyond 24 positions.
Config LongRope() {
  Json json = GoldenConfig("phi3");
  json["vocab_size"] = 8192;
  json["original_max_position_embeddings"] = 24;
  json["rope_parameters"] = {{"rope_type", "longrope"},
                             {"rope_theta", 10000.0},
                             {"partial_rotary_factor", 0.5},
                             {"short_factor", {1.0, 1.1, 1.2, 1.3}},
                             {"long_factor", {2.0, 3.0, 4.0, 5.0}}};
  const std::string folder = TestFolder("longrope");
  std::ofstream(folder + "/config.json") << json.dump();
  Config config;
  config.set_config(folder + "/config.json");
  return config;
}

// Large weights, so that attention sees positions.
void BindLarge(Decoder* model) {
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& spec : model->parameters()) {
    parameters.push_back(at::randn(spec.shape) * 0.5);
  }
  model->Bind(parameters);
}

// Turns of a conversation on both sides of the switch, and back: as each alone.
TEST(DecoderTest, LongropeDoesNotMixInAKeptContext) {
  const auto model = Make(LongRope());
  BindLarge(model.get());
  const at::AutoGradMode no_gradients(false);
  PlainRunner runner;
  const at::Tensor ids = at::randint(8192, {40}, at::kLong);
  CausalContext kept(/*kept=*/true);
  for (const int64_t length : {10, 20, 30, 36, 22}) {
    Texts texts = {{ids.const_data_ptr<int64_t>(),
                    ids.const_data_ptr<int64_t>() + length}};
    CausalContext alone(/*kept=*/false);
    std::vector<at::Tensor> logits;
    for (CausalContext* const context : {&kept, &alone}) {
      context->Begin(model.get(), texts[0], length + 2);
      auto next = context->NextLogits(
          texts, [] { return false; }, runner);
      ASSERT_TRUE(next.ok()) << next.status();
      logits.push_back(*std::move(next));
    }
    EXPECT_TRUE(logits[0].allclose(logits[1], 1e-3, 1e-3)) << length;
  }
}

// Prompts of one batch, in several pieces, on both sides of the switch: as each
// alone at once.
TEST(DecoderTest, LongropeDoesNotMixInABatch) {
  const auto model = Make(LongRope());
  BindLarge(model.get());
  const at::AutoGradMode no_gradients(false);
  PlainRunner runner;
  constexpr int64_t kRows = 128;
  ASSERT_LT(PromptChunk(*model, kRows), 23);
  const std::vector<int64_t> lengths = {40, 23, 24, 9};
  std::vector<std::vector<int64_t>> texts;
  std::vector<absl::Span<const int64_t>> known;
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t length = lengths[row % lengths.size()];
    const at::Tensor ids = at::randint(8192, {length}, at::kLong);
    texts.emplace_back(ids.const_data_ptr<int64_t>(),
                       ids.const_data_ptr<int64_t>() + length);
  }
  for (const auto& text : texts) {
    known.push_back(absl::MakeConstSpan(text).first(text.size() - 1));
  }
  const auto batch = PromptBatch::Create(model.get(), known, 2, runner);
  ASSERT_TRUE(batch.ok()) << batch.status();
  // Once shrunk, rows keep their own lengths.
  (*batch)->KeepRows({0, 1, 2, 3, 5});
  const std::vector<size_t> left = {0, 1, 2, 3, 5};
  const at::Tensor last = at::empty({5, 1}, at::kLong);
  for (size_t row = 0; row < left.size(); ++row) {
    last.mutable_data_ptr<int64_t>()[row] = texts[left[row]].back();
  }
  const at::Tensor together = (*batch)->Append(last, runner);
  for (size_t row = 0; row < left.size(); ++row) {
    const std::vector<int64_t>& text = texts[left[row]];
    const at::Tensor alone =
        model->Logits({at::tensor(text, at::kLong).unsqueeze(0)}, runner);
    EXPECT_TRUE(together[row][0].allclose(
        alone[0][static_cast<int64_t>(text.size()) - 1], 1e-3, 1e-3))
        << left[row];
  }
}

// Notes what recorded work would depend on.
class NotingRecorder final : public WorkRecorder {
 public:
  at::Tensor Values(const at::Tensor&, at::Device) override {
    ADD_FAILURE() << "a table is brought to the device anew";
    return {};
  }
  void Number(int64_t number) override { numbers.push_back(number); }
  void Keep(const at::Tensor& tensor) override { kept.push_back(tensor); }

  std::vector<int64_t> numbers;
  std::vector<at::Tensor> kept;
};

// Two tables are kept: lengths that take turns have theirs made anew.
TEST(DecoderTest, ARecorderHearsTheSameOfNewAndKnownRotations) {
  Json json = GoldenConfig("qwen3");
  json["max_position_embeddings"] = 16;
  json["rope_parameters"] = {
      {"rope_type", "dynamic"}, {"rope_theta", 10000.0}, {"factor", 2.0}};
  const std::string folder = TestFolder("dynamic");
  std::ofstream(folder + "/config.json") << json.dump();
  Config config;
  config.set_config(folder + "/config.json");
  const auto model = Make(config);
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& spec : model->parameters()) {
    parameters.push_back(at::randn(spec.shape));
  }
  model->Bind(parameters);
  const at::AutoGradMode no_gradients(false);
  PlainRunner runner;
  for (const int64_t length : {20, 24, 28, 20, 24, 24, 28}) {
    NotingRecorder recorder;
    SetWorkRecorder(&recorder);
    model->Logits({at::randint(99, {1, length}, at::kLong)}, runner);
    SetWorkRecorder(nullptr);
    EXPECT_EQ(recorder.numbers, std::vector<int64_t>{length});
    ASSERT_EQ(recorder.kept.size(), 1u);
    EXPECT_GE(recorder.kept[0].size(0), length);
  }
}

TEST(DecoderTest, PaddingAfterTheFirstTokenIsRefused) {
  const auto model = Make(RandomOf("llama31"));
  BindRandom(*model, at::kFloat);
  const at::AutoGradMode no_gradients(false);
  const auto cache = model->NewCache(1, 8);
  ASSERT_TRUE(cache.ok());
  PlainRunner runner;
  TokenInput input;
  input.tokens = at::randint(512, {1, 3}, at::kLong);
  input.cache = cache->get();
  input.positions = at::tensor({-1, 0, -1}, at::kLong).view({1, 3});
  EXPECT_THROW(model->Logits(input, runner), c10::Error);
}

// Two rows of 6 and 4 tokens, padded to `length`.
struct TwoRows {
  explicit TwoRows(int64_t length) {
    at::manual_seed(3);
    const at::Tensor ids = at::randint(512, {2, 6}, at::kLong);
    input.tokens = at::zeros({2, length}, at::kLong);
    input.tokens.narrow(1, 0, 6).copy_(ids);
    input.sample_positions = at::tensor({40, 7}, at::kLong);
    targets.tokens = at::full({2, length}, -100, at::kLong);
    targets.tokens.narrow(1, 0, 5).copy_(ids.narrow(1, 1, 5));
    targets.tokens[1].narrow(0, 3, length - 3).fill_(-100);
  }
  TokenInput input;
  TokenTargets targets;
};

TEST(DecoderTest, SmoothsTheLossOfItsLogits) {
  const TwoRows rows(6);
  PlainRunner runner;
  for (const char* family : {"llama31", "gemma2", "qwen2"}) {
    SCOPED_TRACE(family);
    const auto model = Make(RandomOf(family));
    BindRandom(*model, at::kFloat);
    Regularization how;
    const auto sum = [&] {
      return model->RegularizedSum(rows.input, rows.targets, how, runner)
          .item<float>();
    };
    EXPECT_EQ(
        sum(),
        model->CrossEntropySum(rows.input, rows.targets, runner).item<float>());
    how.smoothing = 0.2;
    const at::AutoGradMode no_gradients(false);
    const at::Tensor wanted = at::cross_entropy_loss(
        model->Logits(rows.input, runner).flatten(0, 1).to(at::kDouble),
        rows.targets.tokens.flatten(), /*weight=*/{}, at::Reduction::Sum, -100,
        how.smoothing);
    EXPECT_NEAR(sum(), wanted.item<double>(), 1e-4);
    const at::AutoGradMode gradients(true);
    EXPECT_NEAR(sum(), wanted.item<double>(), 1e-4);
  }
}

TEST(DecoderTest, NoiseIsOfTheSampleAndItsPlace) {
  const auto model = Make(RandomOf("llama31"));
  BindRandom(*model, at::kFloat);
  PlainRunner runner;
  Regularization how;
  how.noise_alpha = 5.0;
  how.seed = 1;
  const auto sum = [&](const TwoRows& rows) {
    return model->RegularizedSum(rows.input, rows.targets, how, runner)
        .item<float>();
  };
  const TwoRows rows(6);
  const float noisy = sum(rows);
  EXPECT_EQ(sum(rows), noisy);
  EXPECT_NE(
      model->CrossEntropySum(rows.input, rows.targets, runner).item<float>(),
      noisy);
  EXPECT_NEAR(sum(TwoRows(9)), noisy, 1e-4);  // more padding
  TwoRows others(6);
  others.input.sample_positions = at::tensor({41, 7}, at::kLong);
  EXPECT_NE(sum(others), noisy);
  how.seed = 2;
  EXPECT_NE(sum(rows), noisy);
  others.input.sample_positions = at::Tensor();
  EXPECT_THROW(sum(others), c10::Error);
}

class DecoderPlanTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    InstallTrackingAllocator();
  }
};

// What a step of each family allocates, as planned.
TEST_P(DecoderPlanTest, Float32) {
  Config config = RandomOf(GetParam());
  config.set_vocab_size(64);  // so that layers, not logits, have the peak
  const auto model = Make(config);
  BindRandom(*model, at::kFloat);
  const int64_t samples = 4, length = 96;
  const MemoryByCategory planned =
      PlannedPeak(*model, samples, length, at::kFloat);
  Places places(*model, at::kFloat);
  model->BindGradients(&places);
  const at::Tensor tokens = at::randint(64, {samples, length}, at::kLong);
  ExpectNear(planned, MeasuredPeak(*model, tokens, {tokens}), 0.02);
}

INSTANTIATE_TEST_SUITE_P(Families, DecoderPlanTest,
                         ::testing::Values("llama31", "llama_biases", "mistral",
                                           "qwen2", "qwen3", "qwen3_moe",
                                           "gemma2", "gemma3", "smollm3",
                                           "olmo2", "phi3"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace capstan::decoder
