// SPDX-License-Identifier: Apache-2.0
//
// With a fake model; tests/golden has real ones.
#include "plugins/objective/causal_lm/causal_lm.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "base/status.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan::causal_lm {
namespace {

constexpr int64_t kVocab = 10;

class CountingCache final : public KvCache {
 public:
  int64_t length() const override { return length_; }
  int64_t length_ = 0;
};

// Its likeliest next token is the last one plus one; it records its input.
class CountingModel final : public IdleModel, public TokenModel {
 public:
  CountingModel() : IdleModel({}, 0) {}

  TokenModel* token_model() override { return is_token_model ? this : nullptr; }

  int64_t vocab_size() const override { return kVocab; }
  int64_t max_positions() const override { return 16; }
  at::Tensor Logits(const TokenInput& input, UnitRunner&) override {
    const int64_t length = input.tokens.size(1);
    lengths.push_back(length);
    static_cast<CountingCache*>(input.cache)->length_ += length;
    at::Tensor logits = at::zeros({1, length, kVocab});
    for (int64_t t = 0; t < length; ++t) {
      const int64_t token = input.tokens[0][t].item<int64_t>();
      logits[0][t][(token + 1) % kVocab] = sharpness;
    }
    return logits;
  }
  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner&) override {
    seen_tokens = input.tokens;
    seen_positions = input.positions;
    seen_samples = input.sample_positions;
    seen_targets = targets.tokens;
    return at::full({}, 7.0);
  }
  at::Tensor RegularizedSum(const TokenInput& input,
                            const TokenTargets& targets,
                            const Regularization& how,
                            UnitRunner& runner) override {
    seen_how = how;
    return CrossEntropySum(input, targets, runner) + 1.0;
  }
  bool regularizes() const override { return can_regularize; }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return std::unique_ptr<KvCache>(new CountingCache);
  }
  int64_t eos_token() const override { return 9; }
  bool causal() const override { return is_causal; }

  bool is_token_model = true;
  bool is_causal = true;
  bool can_regularize = true;
  float sharpness = 3.0f;
  std::vector<int64_t> lengths;
  at::Tensor seen_tokens;
  at::Tensor seen_targets;
  at::Tensor seen_positions;
  at::Tensor seen_samples;
  Regularization seen_how;
};

class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(int64_t size) : size_(size) {}
  int64_t vocab_size() const override { return size_; }
  std::vector<int64_t> Encode(absl::string_view) const override { return {}; }
  Encoding EncodeWithPlaces(absl::string_view) const override { return {}; }
  std::string Decode(absl::Span<const int64_t>) const override { return ""; }
  absl::Status Save(const std::string&) const override {
    return absl::OkStatus();
  }

 private:
  const int64_t size_;
};

class FakeData final : public DatasetReader {
 public:
  FakeData(int64_t length, const Tokenizer* tokenizer)
      : length_(length), tokenizer_(tokenizer) {}
  int64_t size() const override { return 1; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch*) const override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  int64_t max_sequence_length() const override { return length_; }
  const Tokenizer* tokenizer() const override { return tokenizer_; }

 private:
  const int64_t length_;
  const Tokenizer* const tokenizer_;
};

class CausalLmTest : public testing::Test {
 protected:
  void SetUp() override { SetConfig(Config()); }
  void SetConfig(const Config& config) {
    auto made = CausalLm::Create(config);
    ASSERT_TRUE(made.ok()) << made.status();
    objective_ = *std::move(made);
  }
  std::vector<int64_t> Sample(const SampleOptions& options) {
    const auto text = objective_->Sample(model_, {2, 3}, options, runner_);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or(std::vector<int64_t>());
  }

  CountingModel model_;
  PlainRunner runner_;
  StepInfo info_;
  std::unique_ptr<CausalLm> objective_;
};

TEST_F(CausalLmTest, TargetsAreTheNextTokens) {
  const at::Tensor ids = at::tensor({1, 2, 3, 4, 5, 6}, at::kLong).view({2, 3});
  const Batch batch = {{"input_ids", ids}};
  const LossSum loss = objective_->Compute(model_, batch, info_, runner_);
  EXPECT_EQ(loss.sum.item<double>(), 7.0);
  EXPECT_EQ(loss.count, 4);
  EXPECT_EQ(objective_->CountTargets(batch, {}), 4);
  EXPECT_TRUE(model_.seen_tokens.equal(ids));
  EXPECT_TRUE(model_.seen_targets.equal(
      at::tensor({2, 3, -100, 5, 6, -100}, at::kLong).view({2, 3})));
}

// On a GPU, reading the batch's own tensors would block.
TEST_F(CausalLmTest, TargetsAreCountedInTheHostsCopies) {
  const at::Tensor ids = at::tensor({1, 2, 3, 4}, at::kLong).view({1, 4});
  const at::Tensor all = at::tensor({1, 2, 3, 4}, at::kLong).view({1, 4});
  const at::Tensor one = at::tensor({-100, -100, -100, 4}, at::kLong);
  Batch batch = {{kInputIds, ids},
                 {kLabels, all},
                 {HostCopyName(kLabels), one.view({1, 4})}};
  EXPECT_EQ(objective_->CountTargets(batch, {}), 1);
  batch = {{kInputIds, ids},
           {kPositions, at::tensor({0, 1, 0, 1}, at::kLong).view({1, 4})}};
  EXPECT_EQ(objective_->CountTargets(batch, {}), 2);
  EXPECT_EQ(objective_->Compute(model_, batch, info_, runner_).count, 2);
}

TEST_F(CausalLmTest, ABatchThatIsNoTextIsAnError) {
  const Batch batch = {{"x", at::zeros({2})}};
  EXPECT_THROW(objective_->CountTargets(batch, {}), std::invalid_argument);
  EXPECT_THROW(objective_->Compute(model_, batch, info_, runner_),
               std::invalid_argument);
  const Batch uneven = {{kInputIds, at::zeros({2, 4}, at::kLong)},
                        {kPositions, at::zeros({2, 3}, at::kLong)}};
  EXPECT_THROW(objective_->Compute(model_, uneven, info_, runner_),
               std::invalid_argument);
}

TEST_F(CausalLmTest, PairsAreForAnother) {
  const Batch pairs = {{kInputIds, at::zeros({2, 4}, at::kLong)},
                       {kPairKeys, at::zeros({1}, at::kLong)}};
  EXPECT_THROW(objective_->Compute(model_, pairs, info_, runner_),
               std::invalid_argument);
}

TEST_F(CausalLmTest, PromptsAreForAnother) {
  const Batch prompts = {{kInputIds, at::zeros({2, 4}, at::kLong)},
                         {kRowText, at::zeros({2, 9}, at::kByte)}};
  EXPECT_THROW(objective_->Compute(model_, prompts, info_, runner_),
               std::invalid_argument);
}

TEST_F(CausalLmTest, LabelsSayWhatIsTrainedOn) {
  const Batch batch = {
      {"input_ids", at::tensor({1, 2, 3, 4}, at::kLong).view({1, 4})},
      // The first label predicts nothing: no token comes before it.
      {"labels", at::tensor({1, -100, 3, 4}, at::kLong).view({1, 4})}};
  EXPECT_EQ(objective_->Compute(model_, batch, info_, runner_).count, 2);
  EXPECT_EQ(objective_->CountTargets(batch, {}), 2);
  EXPECT_TRUE(model_.seen_targets.equal(
      at::tensor({-100, 3, 4, -100}, at::kLong).view({1, 4})));
}

TEST_F(CausalLmTest, PaddingIsNoToken) {
  Batch batch = {
      {"input_ids", at::tensor({1, 2, 3, 4, 9, 9}, at::kLong).view({2, 3})}};
  EXPECT_EQ(objective_->Compute(model_, batch, info_, runner_).tokens, 6);
  EXPECT_EQ(objective_->Compute(model_, batch, info_, runner_).padding, 0);
  batch[kTokenCounts] = at::tensor({3, 1}, at::kLong);
  const LossSum loss = objective_->Compute(model_, batch, info_, runner_);
  EXPECT_EQ(loss.tokens, 4);
  EXPECT_EQ(loss.padding, 2);
  EXPECT_EQ(objective_->unit(), "tokens");
}

TEST_F(CausalLmTest, NothingIsPredictedAcrossDocuments) {
  Batch batch = {
      {"input_ids", at::tensor({1, 2, 3, 4, 5, 6}, at::kLong).view({1, 6})},
      {"positions", at::tensor({0, 1, 2, 0, 0, 1}, at::kLong).view({1, 6})}};
  const auto wanted = [](std::vector<int64_t> targets) {
    return at::tensor(targets, at::kLong).view({1, -1});
  };
  EXPECT_EQ(objective_->Compute(model_, batch, info_, runner_).count, 3);
  EXPECT_EQ(objective_->CountTargets(batch, {}), 3);
  EXPECT_TRUE(model_.seen_targets.equal(wanted({2, 3, -100, -100, 6, -100})));
  EXPECT_TRUE(model_.seen_positions.equal(batch["positions"]));
  // A reader that didn't mask the first labels of its documents.
  batch["labels"] = at::tensor({1, -100, 3, 4, 5, 6}, at::kLong).view({1, 6});
  EXPECT_EQ(objective_->Compute(model_, batch, info_, runner_).count, 2);
  EXPECT_EQ(objective_->CountTargets(batch, {}), 2);
  EXPECT_TRUE(
      model_.seen_targets.equal(wanted({-100, 3, -100, -100, 6, -100})));
}

TEST_F(CausalLmTest, SamplePositionsAreForTraining) {
  const Batch batch = {
      {"input_ids", at::tensor({1, 2}, at::kLong).view({1, 2})},
      {"sample_position", at::tensor({7}, at::kLong)}};
  info_.training = true;
  objective_->Compute(model_, batch, info_, runner_);
  EXPECT_TRUE(model_.seen_samples.equal(at::tensor({7}, at::kLong)));
  EXPECT_FALSE(model_.seen_positions.defined());
  info_.training = false;
  objective_->Compute(model_, batch, info_, runner_);
  EXPECT_FALSE(model_.seen_samples.defined());
}

TEST_F(CausalLmTest, RegularizesInTrainingAlone) {
  Config config;
  config.set_label_smoothing(0.1);
  config.set_noise_alpha(5.0);
  SetConfig(config);
  const Batch batch = {
      {"input_ids", at::tensor({1, 2}, at::kLong).view({1, 2})},
      {"sample_position", at::tensor({7}, at::kLong)}};
  info_.seed = 3;
  // So that losses of runs with other settings compare.
  EXPECT_EQ(
      objective_->Compute(model_, batch, info_, runner_).sum.item<double>(),
      7.0);
  info_.training = true;
  EXPECT_EQ(
      objective_->Compute(model_, batch, info_, runner_).sum.item<double>(),
      8.0);
  EXPECT_EQ(model_.seen_how.smoothing, 0.1);
  EXPECT_EQ(model_.seen_how.noise_alpha, 5.0);
  EXPECT_EQ(model_.seen_how.seed, 3u);
  EXPECT_TRUE(model_.seen_samples.equal(at::tensor({7}, at::kLong)));

  EXPECT_TRUE(objective_->Check(model_, FakeData(16, nullptr)).ok());
  model_.can_regularize = false;
  absl::Status status = objective_->Check(model_, FakeData(16, nullptr));
  EXPECT_EQ(FieldOf(status), "label_smoothing");
  EXPECT_NE(status.message().find("leave it out"), absl::string_view::npos);
  config.clear_label_smoothing();
  SetConfig(config);
  status = objective_->Check(model_, FakeData(16, nullptr));
  EXPECT_EQ(FieldOf(status), "noise_alpha");
  SetConfig(Config());
  EXPECT_TRUE(objective_->Check(model_, FakeData(16, nullptr)).ok());
}

TEST_F(CausalLmTest, NoiseHasALimit) {
  for (const double alpha : {-1.0, 1001.0, HUGE_VAL, std::nan("")}) {
    Config config;
    config.set_noise_alpha(alpha);
    EXPECT_EQ(FieldOf(CausalLm::Create(config).status()), "noise_alpha")
        << alpha;
  }
}

TEST_F(CausalLmTest, NoLabelAtAllIsLegal) {
  const Batch batch = {
      {"input_ids", at::tensor({1, 2}, at::kLong).view({1, 2})},
      {"labels", at::tensor({-100, -100}, at::kLong).view({1, 2})}};
  EXPECT_EQ(objective_->Compute(model_, batch, info_, runner_).count, 0);
}

TEST_F(CausalLmTest, CheckNamesWhatDoesNotFit) {
  const FakeTokenizer fits(kVocab), large(256);
  EXPECT_TRUE(objective_->Check(model_, FakeData(16, &fits)).ok());
  EXPECT_TRUE(objective_->Check(model_, FakeData(16, nullptr)).ok());
  const absl::Status vocab = objective_->Check(model_, FakeData(16, &large));
  EXPECT_NE(vocab.message().find("ids up to 255, the model's vocab_size is 10"),
            absl::string_view::npos)
      << vocab;
  const absl::Status longer = objective_->Check(model_, FakeData(17, &fits));
  EXPECT_NE(longer.message().find("17 tokens"), absl::string_view::npos)
      << longer;
  model_.is_causal = false;
  const absl::Status sees_all = objective_->Check(model_, FakeData(16, &fits));
  EXPECT_NE(sees_all.message().find("use capstan.masked_diffusion"),
            absl::string_view::npos)
      << sees_all;
  EXPECT_EQ(objective_->Sample(model_, {1}, {}, runner_).status(), sees_all);
  model_.is_token_model = false;
  EXPECT_FALSE(objective_->Check(model_, FakeData(16, &fits)).ok());
}

TEST_F(CausalLmTest, GreedyFeedsThePromptOnceAndThenEachToken) {
  SampleOptions options;
  options.greedy = true;
  options.max_new_tokens = 4;
  std::vector<int64_t> told;
  options.on_token = [&told](int64_t token) { told.push_back(token); };
  EXPECT_EQ(Sample(options), (std::vector<int64_t>{2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(told, (std::vector<int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(model_.lengths, (std::vector<int64_t>{2, 1, 1, 1}));
}

TEST_F(CausalLmTest, StopsAtTheEndOfTextUnlessToldNotTo) {
  SampleOptions options;
  options.greedy = true;
  options.max_new_tokens = 8;
  EXPECT_EQ(Sample(options).back(), 9);
  EXPECT_EQ(Sample(options).size(), 8u);
  options.stop_at_eos = false;
  EXPECT_EQ(Sample(options).size(), 10u);
}

TEST_F(CausalLmTest, CanBeStoppedBetweenTokens) {
  SampleOptions options;
  int asked = 0;
  options.stop = [&asked] { return ++asked == 3; };
  const auto text = objective_->Sample(model_, {2, 3}, options, runner_);
  EXPECT_TRUE(absl::IsCancelled(text.status())) << text.status();
  EXPECT_EQ(model_.lengths.size(), 2u);
}

TEST_F(CausalLmTest, GoesOnWithTheLaterHalfWhenTheModelsPositionsEnd) {
  SampleOptions options;
  options.stop_at_eos = false;
  options.max_new_tokens = 20;
  EXPECT_EQ(Sample(options).size(), 22u);  // the model has 16 positions
  // Once 16 are in the cache, the last 8 begin a new one.
  std::vector<int64_t> want(20, 1);
  want[0] = 2;
  want[15] = 8;
  EXPECT_EQ(model_.lengths, want);
  EXPECT_EQ(objective_->Sample(model_, {1, 2}, SampleOptions(), runner_)
                .value()
                .back(),
            9);
}

TEST_F(CausalLmTest, TheSeedAloneDecides) {
  model_.sharpness = 0.0f;
  SampleOptions options;
  options.stop_at_eos = false;
  const std::vector<int64_t> first = Sample(options);
  EXPECT_EQ(Sample(options), first);
  options.seed = 1;
  EXPECT_NE(Sample(options), first);
}

TEST_F(CausalLmTest, OptionsGoBeforeTheConfig) {
  Config config;
  config.set_greedy(true);
  config.set_max_new_tokens(3);
  SetConfig(config);
  EXPECT_EQ(Sample({}), (std::vector<int64_t>{2, 3, 4, 5, 6}));
  model_.sharpness = 0.0f;
  SampleOptions options;
  options.max_new_tokens = 12;
  options.stop_at_eos = false;
  options.temperature = 5.0;
  const std::vector<int64_t> text = Sample(options);
  EXPECT_EQ(text.size(), 14u);
  // Greedy would have taken token 0 each time.
  EXPECT_LT(std::count(text.begin(), text.end(), 0), 6);
}

TEST_F(CausalLmTest, BadPromptsAreErrors) {
  for (const std::vector<int64_t>& prompt :
       {std::vector<int64_t>{}, {10}, {-1}, std::vector<int64_t>(17, 1)}) {
    EXPECT_FALSE(objective_->Sample(model_, prompt, {}, runner_).ok());
  }
  // All of the model's positions.
  const std::vector<int64_t> whole(16, 1);
  EXPECT_TRUE(objective_->Sample(model_, whole, {}, runner_).ok());
}

TEST_F(CausalLmTest, BadConfigNamesItsField) {
  Config config;
  config.set_temperature(-1.0);
  EXPECT_EQ(FieldOf(CausalLm::Create(config).status()), "temperature");
  config = Config();
  config.set_top_p(0.0);
  EXPECT_EQ(FieldOf(CausalLm::Create(config).status()), "top_p");
  config = Config();
  config.set_label_smoothing(1.0);
  EXPECT_EQ(FieldOf(CausalLm::Create(config).status()), "label_smoothing");
  config = Config();
  config.set_noise_alpha(-1.0);
  EXPECT_EQ(FieldOf(CausalLm::Create(config).status()), "noise_alpha");
  config = Config();
  config.set_max_new_tokens(-1);
  EXPECT_EQ(FieldOf(CausalLm::Create(config).status()), "max_new_tokens");
  EXPECT_EQ(CausalLm::Create(config).status().message(),
            "must be greater than 0, or 0 for the default, is -1");
  config.set_max_new_tokens(0);
  EXPECT_TRUE(CausalLm::Create(config).ok());
}

}  // namespace
}  // namespace capstan::causal_lm
