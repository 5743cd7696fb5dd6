// SPDX-License-Identifier: Apache-2.0
//
// Tokens added to a tokenizer and a model, against transformers and PEFT:
// testdata/new_tokens, written by make_new_tokens.py.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/status.h"
#include "plugins/model/decoder/decoder.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokenizer/add_tokens.h"

namespace capstan {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr char kFolder[] = "tests/golden/testdata/new_tokens/";
constexpr int64_t kRows = 24, kGrown = 26, kWidth = 16;

Json Golden() {
  return Json::parse(std::ifstream(std::string(kFolder) + "golden.json"));
}

std::string FolderOf(bool tied) {
  return kFolder + std::string(tied ? "tied" : "untied");
}

std::unique_ptr<decoder::Decoder> Make(bool tied, int64_t rows) {
  decoder::Config config;
  config.set_pretrained(FolderOf(tied) + "/base");
  config.set_vocab_size(rows);
  auto model = decoder::Decoder::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

std::vector<float> Value(const Model& model, int index, uint64_t seed) {
  std::vector<float> value(model.parameters()[index].numel());
  EXPECT_TRUE(
      model.InitialValue(index, seed, 0, value.size(), value.data()).ok());
  return value;
}

TEST(NewTokensGoldenTest, APeftAdapterGivesItsLogits) {
  for (const bool tied : {false, true}) {
    const Json golden = Golden()[tied ? "tied" : "untied"];
    const auto model = Make(tied, kGrown);
    const auto spec = ReadAdapterConfig(FolderOf(tied) + "/adapter");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->ties, tied);
    EXPECT_TRUE(model->SetModulesToSave(spec->modules_to_save).ok());
    const absl::Status added = model->AddLora(*spec);
    ASSERT_TRUE(added.ok()) << added;
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      const std::vector<float> value = Value(*model, static_cast<int>(i), 0);
      at::Tensor tensor = at::empty(model->parameters()[i].shape, at::kFloat);
      std::copy(value.begin(), value.end(), tensor.mutable_data_ptr<float>());
      parameters.push_back(std::move(tensor));
    }
    model->Bind(parameters);
    const at::NoGradGuard no_grad;
    const std::vector<int64_t> tokens = golden["tokens"];
    TokenInput input;
    input.tokens =
        at::empty({1, static_cast<int64_t>(tokens.size())}, at::kLong);
    std::copy(tokens.begin(), tokens.end(),
              input.tokens.mutable_data_ptr<int64_t>());
    PlainRunner runner;
    const at::Tensor logits = model->Logits(input, runner);
    ASSERT_EQ(logits.size(2), kGrown);
    for (int64_t t = 0; t < logits.size(1); ++t) {
      for (int64_t v = 0; v < kGrown; ++v) {
        EXPECT_NEAR(logits[0][t][v].item<float>(),
                    golden["logits"][t][v].get<double>(), 1e-5);
      }
    }
    // What the adapter's file calls them.
    const std::string prefix = "base_model.model.";
    std::vector<std::string> names = model->SavedNames(0);
    EXPECT_EQ(names[0], prefix + "model.embed_tokens.weight");
    if (!tied) {
      names = model->SavedNames(model->parameters().size() - 9);
    }
    EXPECT_EQ(names.back(), prefix + "lm_head.weight");
  }
}

TEST(NewTokensGoldenTest, ModulesThatCannotBeSaved) {
  const auto refuse = [](bool tied, const std::string& module, int64_t rows,
                         const std::string& words) {
    const auto model = Make(tied, rows);
    LoraSpec spec;
    spec.target_modules = {"q_proj"};
    EXPECT_TRUE(model->SetModulesToSave({module}).ok());
    const absl::Status status = model->AddLora(spec);
    EXPECT_EQ(FieldOf(status), "modules_to_save") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  refuse(false, "nothing", kRows, "'nothing' is none of this model's modules");
  refuse(false, "q_proj", kRows, "target_modules gives it an adapter");
  refuse(false, "lm_head", kGrown, "must name model.embed_tokens and lm_head");
  // PEFT trains embedding and head of a tied model apart without
  // ensure_weight_tying.
  const std::string folder = ::testing::TempDir() + "/apart";
  std::filesystem::remove_all(folder);
  std::filesystem::copy(FolderOf(true) + "/adapter", folder);
  Json json = Json::parse(std::ifstream(folder + "/adapter_config.json"));
  json["ensure_weight_tying"] = false;
  std::filesystem::remove(folder + "/adapter_config.json");
  std::ofstream(folder + "/adapter_config.json") << json.dump();
  const auto model = Make(true, kGrown);
  const auto spec = ReadAdapterConfig(folder);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_TRUE(model->SetModulesToSave(spec->modules_to_save).ok());
  const absl::Status status = model->AddLora(*spec);
  EXPECT_EQ(FieldOf(status), "pretrained") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ensure_weight_tying"));
}

// Mean and covariance of many rows, drawn around those of the file.
TEST(NewTokensGoldenTest, NewRowsHaveTheOldOnesDistribution) {
  constexpr int64_t kNew = 4000;
  const auto base = Make(true, kRows), model = Make(true, kRows + kNew);
  const std::vector<float> old = Value(*base, 0, 0);
  const std::vector<float> all = Value(*model, 0, 5);
  for (size_t i = 0; i < old.size(); ++i) ASSERT_EQ(all[i], old[i]);
  EXPECT_EQ(Value(*Make(true, kRows + kNew), 0, 5), all);
  EXPECT_NE(Value(*model, 0, 6), all);
  std::vector<float> part(40);
  const int64_t begin = kRows * kWidth - 7;
  ASSERT_TRUE(model->InitialValue(0, 5, begin, 40, part.data()).ok());
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(part[i], all[begin + i]);

  const auto mean = [&](int64_t first, int64_t rows, int64_t c) {
    double sum = 0.0;
    for (int64_t r = first; r < first + rows; ++r) sum += all[r * kWidth + c];
    return sum / static_cast<double>(rows);
  };
  const auto covariance = [&](int64_t first, int64_t rows, int64_t a,
                              int64_t b) {
    const double mean_a = mean(first, rows, a), mean_b = mean(first, rows, b);
    double sum = 0.0;
    for (int64_t r = first; r < first + rows; ++r) {
      sum += (all[r * kWidth + a] - mean_a) * (all[r * kWidth + b] - mean_b);
    }
    return sum / static_cast<double>(rows);
  };
  for (int64_t a = 0; a < kWidth; ++a) {
    const double variance = 1e-9 * covariance(0, kRows, a, a);
    EXPECT_NEAR(mean(kRows, kNew, a), mean(0, kRows, a),
                6.0 * std::sqrt(variance / kNew) + 1e-8);
    for (int64_t b = 0; b < 4; ++b) {
      const double want = 1e-9 * covariance(0, kRows, a, b);
      const double scale =
          std::sqrt(variance * 1e-9 * covariance(0, kRows, b, b));
      EXPECT_NEAR(covariance(kRows, kNew, a, b), want, 0.12 * scale);
    }
  }
}

TEST(NewTokensGoldenTest, TokenizersTokens) {
  const Json golden = Golden()["tokenizer"];
  const std::string from = "tests/golden/testdata/tokenizer_gemma";
  const std::string to = ::testing::TempDir() + "/added";
  std::filesystem::remove_all(to);
  std::filesystem::create_directories(to);
  tokenizer::TokensToAdd add;
  add.plain = {"<step>", "a", "<|im_end|>"};
  add.special = {"<|im_start|>", "<|im_end|>", "<|im_start|>"};
  add.bos = "<|im_start|>";
  add.eos = add.pad = "<|im_end|>";
  add.chat_template = "{{ 'x' }}";
  const auto added = tokenizer::AddTokens(from, add, to);
  ASSERT_TRUE(added.ok()) << added.status();
  EXPECT_EQ(*added, 3);  // "a" is there
  const auto made = LoadTokenizer(to);
  ASSERT_TRUE(made.ok()) << made.status();
  const int64_t rows = golden["rows"];
  EXPECT_EQ((*made)->vocab_size(), rows + 3);
  EXPECT_EQ((*made)->Encode(golden["text"].get<std::string>()),
            golden["ids"].get<std::vector<int64_t>>());
  EXPECT_TRUE((*made)->IsSpecial(rows + 1));
  EXPECT_FALSE((*made)->IsSpecial(rows + 2));
  EXPECT_EQ((*made)->special_ids().bos, rows);
  EXPECT_EQ((*made)->special_ids().eos, rows + 1);
  EXPECT_EQ((*made)->special_ids().pad, rows + 1);
  EXPECT_EQ((*made)->chat_template(), "{{ 'x' }}");
  // What it has already changes nothing.
  const std::string again = to + "/again";
  std::filesystem::create_directories(again);
  const auto none = tokenizer::AddTokens(to, add, again);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, 0);
  EXPECT_EQ(Json::parse(std::ifstream(again + "/tokenizer.json")),
            Json::parse(std::ifstream(to + "/tokenizer.json")));
  // One of the vocabulary's becomes special.
  add = {};
  add.special = {"a"};
  std::filesystem::remove_all(again);
  std::filesystem::create_directories(again);
  const auto same = tokenizer::AddTokens(from, add, again);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(*same, 0);
  const auto special = LoadTokenizer(again);
  ASSERT_TRUE(special.ok()) << special.status();
  EXPECT_TRUE((*special)->IsSpecial((*special)->IdOf("a").value_or(-1)));
  EXPECT_EQ((*special)->vocab_size(), rows);
}

}  // namespace
}  // namespace capstan
