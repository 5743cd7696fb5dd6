// SPDX-License-Identifier: Apache-2.0
//
// A LLaDA's block cache against forwards without one, in which the tokens whose
// keys and values are kept have before each layer what they had there when all
// was last computed.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "plugins/llada/masked_diffusion/masked_diffusion.h"
#include "plugins/llada/model/llada.h"
#include "plugins/llada/scratch_model/llada_scratch.pb.h"
#include "plugins/sdk/plugin_for_test.h"
#include "plugins/sdk/token_model.h"

namespace capstan::masked_diffusion {
namespace {

using Text = std::vector<int64_t>;

constexpr int64_t kVocab = 31;

// Runs units on whole texts; the rows of kept tokens are those of the last run
// that kept none.
class StaleRunner final : public UnitRunner {
 public:
  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override {
    at::Tensor x = input;
    if (unit > 0) {  // the first one's input is the tokens
      at::Tensor& last = last_[unit];
      if (last.defined() && kept.any().item<bool>()) {
        x = at::where(kept.unsqueeze(1), last, x);
      } else {
        last = x.clone();
      }
    }
    return body(x);
  }
  at::Tensor kept;  // [B * T] bool

 private:
  std::map<int, at::Tensor> last_;
};

// Holds each forward with a cache against one without.
class Checked final : public TokenModel {
 public:
  explicit Checked(TokenModel* model) : model_(model) {}

  int64_t vocab_size() const override { return model_->vocab_size(); }
  int64_t max_positions() const override { return model_->max_positions(); }
  bool causal() const override { return false; }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override {
    return model_->NewCache(batch, max_length);
  }
  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override {
    return model_->CrossEntropySum(input, targets, runner);
  }

  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override {
    if (input.cache == nullptr) return model_->Logits(input, runner);
    const int64_t batch = input.tokens.size(0);
    const int64_t held = input.cache->length();
    if (held == 0) tokens_ = at::zeros_like(input.tokens);
    const at::Tensor positions = input.positions[0];
    tokens_.index_copy_(1, positions, input.tokens);
    at::Tensor kept = at::ones({tokens_.size(1)}, at::kBool);
    kept.index_fill_(0, positions, 0);
    EXPECT_EQ(kept.sum().item<int64_t>(), held);
    stale_.kept = kept.repeat({batch});
    const at::Tensor wanted = model_->Logits({tokens_}, stale_);
    const at::Tensor fresh = model_->Logits({tokens_}, runner);
    const at::Tensor got = model_->Logits(input, runner);
    const auto difference = [&](const at::Tensor& whole) {
      return (whole.index_select(1, positions) - got)
          .abs()
          .max()
          .item<double>();
    };
    EXPECT_LT(difference(wanted), 1e-4);
    out_of_date = std::max(out_of_date, difference(fresh));
    if (held > 0) ++shortened;
    return got;
  }

  int shortened = 0;         // forwards of a part of the text
  double out_of_date = 0.0;  // the most by which what is kept changes logits

 private:
  TokenModel* const model_;
  at::Tensor tokens_;
  StaleRunner stale_;
};

std::unique_ptr<Model> NewLlada() {
  llada::Config config;
  config.set_d_model(24);
  config.set_mlp_hidden_size(40);
  config.set_n_layers(3);
  config.set_n_heads(4);
  config.set_n_kv_heads(2);
  config.set_vocab_size(kVocab);
  auto model = llada::Llada::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

std::unique_ptr<Model> NewScratch() {
  llada_scratch::Config config;
  config.set_vocab_size(kVocab);
  config.set_hidden_size(24);
  config.set_num_hidden_layers(3);
  config.set_num_attention_heads(3);
  config.set_max_sequence_length(80);
  auto model = MakePlugin<Model>(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

class BlockCacheTest
    : public testing::TestWithParam<std::unique_ptr<Model> (*)()> {
 protected:
  void SetUp() override {
    model_ = GetParam()();
    at::manual_seed(1);
    std::vector<at::Tensor> parameters;
    for (const ParameterSpec& spec : model_->parameters()) {
      const bool norm =
          spec.shape.size() == 1 && absl::EndsWith(spec.name, ".weight");
      parameters.push_back(at::randn(spec.shape) * 0.4 + (norm ? 1.0 : 0.0));
    }
    model_->Bind(parameters);
  }

  Text Sample(TokenModel* model, const SamplerOptions& options) {
    const auto text = Unmask(*model, {5, 3, 8, 2, 9}, model->vocab_size() - 1,
                             options, nullptr, runner_);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or(Text());
  }

  std::unique_ptr<Model> model_;
  PlainRunner runner_;
};

SamplerOptions Options(int64_t block_length) {
  SamplerOptions options;
  options.max_new_tokens = 48;
  options.block_length = block_length;
  options.temperature = 0.5;
  return options;
}

TEST_P(BlockCacheTest, KeepsWhatWasLastComputed) {
  for (const Config::Cache cache : {Config::PREFIX, Config::DUAL}) {
    for (const double cfg_scale : {0.0, 0.5}) {
      for (const int64_t refresh : {0, 3}) {
        SCOPED_TRACE(testing::Message() << Config::Cache_Name(cache) << " "
                                        << cfg_scale << " " << refresh);
        SamplerOptions options = Options(8);
        options.cache = cache;
        options.cfg_scale = cfg_scale;
        if (refresh > 0) options.cache_refresh = refresh;
        Checked checked(model_->token_model());
        Sample(&checked, options);
        // Of 8 steps a block, the first computes all, or each third.
        EXPECT_EQ(checked.shortened, 6 * (refresh > 0 ? 5 : 7));
        EXPECT_GT(checked.out_of_date, 1e-2);
      }
    }
  }
}

TEST_P(BlockCacheTest, RefreshedInEachStepItIsWithoutEffect) {
  // Several blocks, and one of all.
  for (const int64_t block_length : {8, 48}) {
    const Text plain = Sample(model_->token_model(), Options(block_length));
    for (const Config::Cache cache : {Config::PREFIX, Config::DUAL}) {
      SamplerOptions options = Options(block_length);
      options.cache = cache;
      EXPECT_NE(Sample(model_->token_model(), options), plain);
      options.cache_refresh = 1;
      EXPECT_EQ(Sample(model_->token_model(), options), plain);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, BlockCacheTest,
                         testing::Values(&NewLlada, &NewScratch));

}  // namespace
}  // namespace capstan::masked_diffusion
