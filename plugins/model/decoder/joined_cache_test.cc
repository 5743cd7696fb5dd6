// SPDX-License-Identifier: Apache-2.0
//
// Texts that begin and end side by side in one cache: their logits are those of
// each alone, to the bit where attention has a query a row (OneQuery).
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/strict_products_for_test.h"
#include "plugins/model/decoder/decoder.h"
#include "plugins/model/decoder/decoder_testing.h"
#include "plugins/objective/common/causal_batch.h"
#include "plugins/sdk/text_batch.h"
#include "plugins/sdk/token_model.h"

namespace capstan::decoder {
namespace {

// Large weights, so that attention sees positions.
std::unique_ptr<Decoder> Bound(const Json& json) {
  const std::string folder = TestFolder("model");
  std::ofstream(folder + "/config.json") << json.dump();
  Config config;
  config.set_config(folder + "/config.json");
  auto model = Decoder::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& spec : (*model)->parameters()) {
    parameters.push_back(at::randn(spec.shape) * 0.3);
  }
  (*model)->Bind(std::move(parameters));
  return *std::move(model);
}

struct Text {
  int64_t begins;             // at this step
  int64_t prompt, more;       // tokens
  std::vector<float> logits;  // of all new tokens
};

// Runs `texts` with prompts of random tokens, each from its step on.
void Run(Decoder* model, std::vector<Text*> texts) {
  const auto batch = CausalBatch::Create(
      model, /*keep_context=*/false,
      [](const SampleOptions&) { return SamplerOptions(); });
  ASSERT_TRUE(batch.ok()) << batch.status();
  PlainRunner runner;
  size_t done = 0;
  for (int64_t step = 0; done < texts.size(); ++step) {
    ASSERT_LT(step, 1000);
    for (Text* const text : texts) {
      if (text->begins != step) continue;
      at::manual_seed(static_cast<uint64_t>(text->prompt));
      const at::Tensor ids = at::randint(500, {text->prompt}, at::kLong);
      BatchedText batched;
      batched.prompt.assign(ids.const_data_ptr<int64_t>(),
                            ids.const_data_ptr<int64_t>() + text->prompt);
      batched.options.max_new_tokens = text->more;
      batched.options.stop_at_eos = false;
      batched.options.seed = static_cast<uint64_t>(text->prompt);
      batched.on_logits = [text](size_t, absl::Span<const float> logits) {
        text->logits.insert(text->logits.end(), logits.begin(), logits.end());
      };
      batched.done = [&done](const absl::Status& status) {
        EXPECT_TRUE(status.ok()) << status;
        ++done;
      };
      ASSERT_TRUE((*batch)->Add(std::move(batched)).ok());
    }
    ASSERT_TRUE((*batch)->Step(runner).ok());
  }
}

// The greatest difference between logits alone and side by side.
float Difference(Decoder* model, std::vector<Text> texts) {
  std::vector<Text> alone = texts;
  std::vector<Text*> all;
  for (Text& text : texts) all.push_back(&text);
  Run(model, all);
  float most = 0.0f;
  for (size_t i = 0; i < texts.size(); ++i) {
    alone[i].begins = 0;
    Run(model, {&alone[i]});
    EXPECT_EQ(texts[i].logits.size(), alone[i].logits.size());
    if (texts[i].logits.size() != alone[i].logits.size()) return INFINITY;
    for (size_t j = 0; j < texts[i].logits.size(); ++j) {
      const float difference = texts[i].logits[j] - alone[i].logits[j];
      if (!(std::abs(difference) <= most)) most = std::abs(difference);
    }
  }
  return most;
}

// Rows join at the end, in front of shorter ones and in the place of others.
const std::vector<Text> kTexts = {
    {0, 3, 40, {}},  {2, 90, 12, {}}, {4, 5, 9, {}},   {4, 7, 30, {}},
    {9, 130, 3, {}}, {15, 1, 60, {}}, {16, 33, 5, {}}, {90, 11, 6, {}}};

TEST(JoinedCacheTest, EqualsEachAlone) {
  for (const char* const family :
       {"llama31", "qwen3", "phi3", "smollm3", "gemma3", "qwen3_moe"}) {
    const auto model = Bound(GoldenConfig(family));
    EXPECT_EQ(Difference(model.get(), kTexts), 0.0f) << family;
  }
}

// With a cap on scores attention adds up in another order.
TEST(JoinedCacheTest, CappedScoresAreNear) {
  const auto model = Bound(GoldenConfig("gemma2"));
  EXPECT_LT(Difference(model.get(), kTexts), 1e-3f);
}

// What precedes all texts is dropped again and again.
TEST(JoinedCacheTest, AnEndlessBatchKeepsNoMoreThanItsTexts) {
  Json json = GoldenConfig("llama31");
  const auto model = Bound(json);
  std::vector<Text> texts = {{0, 240, 10, {}}};
  for (int64_t i = 0; i < 24; ++i) {
    texts.push_back({2 + 12 * i, 2 + i, 40, {}});
  }
  EXPECT_EQ(Difference(model.get(), texts), 0.0f);
}

// The length of the own text decides on its rotations.
TEST(JoinedCacheTest, LongropeDoesNotMix) {
  Json json = GoldenConfig("phi3");
  json["original_max_position_embeddings"] = 64;
  json["rope_parameters"] = {{"rope_type", "longrope"},
                             {"rope_theta", 10000.0},
                             {"partial_rotary_factor", 0.5},
                             {"short_factor", {1.0, 1.1, 1.2, 1.3}},
                             {"long_factor", {2.0, 3.0, 4.0, 5.0}}};
  const auto model = Bound(json);
  EXPECT_LT(Difference(model.get(), kTexts), 1e-3f);
}

}  // namespace
}  // namespace capstan::decoder
