// SPDX-License-Identifier: Apache-2.0
//
// With a fake model; tests/golden has a real one.
#include "plugins/llada/masked_diffusion/masked_diffusion.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <stdexcept>

#include "base/status.h"
#include "plugins/llada/masked_diffusion/objective_fixture.h"

namespace capstan::masked_diffusion {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMask = FakeModel::kMask;

class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(int64_t size) : size_(size) {}
  int64_t vocab_size() const override { return size_; }
  std::vector<int64_t> Encode(absl::string_view) const override { return {}; }
  Encoding EncodeWithPlaces(absl::string_view) const override { return {}; }
  std::string Decode(absl::Span<const int64_t>) const override { return "x"; }
  bool IsSpecial(int64_t id) const override { return id == special; }
  absl::Status Save(const std::string&) const override {
    return absl::OkStatus();
  }
  int64_t special = -1;

 private:
  const int64_t size_;
};

class FakeData final : public DatasetReader {
 public:
  FakeData(int64_t length, const Tokenizer* tokenizer)
      : length_(length), tokenizer_(tokenizer) {}
  int64_t size() const override { return 1; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch* batch) const override {
    *batch = first;
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  int64_t max_sequence_length() const override { return length_; }
  const Tokenizer* tokenizer() const override { return tokenizer_; }

  Batch first;

 private:
  const int64_t length_;
  const Tokenizer* const tokenizer_;
};

TEST_F(MaskedDiffusionTest, ABatchThatIsNoTextIsAnError) {
  Batch batch = Rows(0, 2, 4);
  batch[kLabels] = at::zeros({2, 3}, at::kLong);
  EXPECT_THROW(objective_->CountTargets(batch, info_), std::invalid_argument);
  batch.erase(kInputIds);
  EXPECT_THROW(objective_->CountTargets(batch, info_), std::invalid_argument);
  EXPECT_THROW(objective_->Compute(model_, batch, info_, runner_),
               std::invalid_argument);
}

TEST_F(MaskedDiffusionTest, CheckWantsTheRowsOfItsLoss) {
  FakeData data(32, nullptr);
  const auto message = [&] {
    return std::string(objective_->Check(model_, data).message());
  };
  data.first[kRowText] = at::zeros({1, 1}, at::kByte);
  EXPECT_THAT(message(), HasSubstr("kind: PROMPT"));
  data.first = {{kPairKeys, at::zeros({1}, at::kLong)}};
  EXPECT_THAT(message(), HasSubstr("set loss: VRPO"));
  Config config;
  config.set_loss(Config::VRPO);
  SetConfig(config);
  EXPECT_THAT(message(), HasSubstr("the loss of each text apart"));
}

TEST_F(MaskedDiffusionTest, CheckNamesWhatDoesNotFit) {
  const auto message = [this](const FakeData& data) {
    return std::string(objective_->Check(model_, data).message());
  };
  FakeTokenizer fits(10), large(256), holds_mask(12);
  EXPECT_EQ(message(FakeData(32, &fits)), "");
  EXPECT_EQ(message(FakeData(32, nullptr)), "");
  EXPECT_THAT(message(FakeData(33, &fits)), HasSubstr("33 tokens"));
  EXPECT_THAT(message(FakeData(32, &large)),
              HasSubstr("ids up to 255, the model's vocab_size is 12"));
  EXPECT_THAT(message(FakeData(32, &holds_mask)),
              HasSubstr("the mask token, 10, is the data's \"x\""));
  holds_mask.special = kMask;
  EXPECT_EQ(message(FakeData(32, &holds_mask)), "");
  model_.mask = 126336;
  EXPECT_THAT(message(FakeData(32, &fits)),
              HasSubstr("is 126336, the model's vocab_size is 12"));
  EXPECT_EQ(FieldOf(objective_->Check(model_, FakeData(32, &fits))),
            "mask_token_id");
  model_.mask = -1;
  EXPECT_THAT(message(FakeData(32, &fits)), HasSubstr("names no mask token"));
  Config config;
  config.set_mask_token_id(11);
  SetConfig(config);
  EXPECT_EQ(message(FakeData(32, &fits)), "");
  model_.is_causal = true;
  EXPECT_THAT(message(FakeData(32, &fits)), HasSubstr("capstan.causal_lm"));
  model_.is_token_model = false;
  EXPECT_THAT(message(FakeData(32, &fits)), HasSubstr("token sequences"));
}

TEST_F(MaskedDiffusionTest, SamplesAsConfigAndCallerSay) {
  // Position t holds token t - 1, with more confidence further left.
  model_.logit = [](int64_t, int64_t t, int64_t v) {
    return v == t - 1 ? 5.0f - 0.1f * static_cast<float>(t) : 0.0f;
  };
  Config config;
  config.set_max_new_tokens(4);
  config.set_steps(2);
  SetConfig(config);
  std::vector<std::vector<int64_t>> told;
  SampleOptions options;
  options.on_text = [&told](absl::Span<const int64_t> text) {
    told.emplace_back(text.begin(), text.end());
  };
  EXPECT_THAT(objective_->Sample(model_, {8, 8}, options, runner_).value(),
              ElementsAre(8, 8, 1, 2, 3, 4));
  EXPECT_THAT(told, ElementsAre(ElementsAre(8, 8, 1, 2, kMask, kMask),
                                ElementsAre(8, 8, 1, 2, 3, 4)));
  options.max_new_tokens = 10;
  EXPECT_THAT(objective_->Sample(model_, {8, 8}, options, runner_).value(),
              ElementsAre(8, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  options.stop_tokens = {3};
  EXPECT_EQ(objective_->Sample(model_, {8, 8}, options, runner_)->size(), 5u);
  options.stop_at_eos = false;
  EXPECT_EQ(objective_->Sample(model_, {8, 8}, options, runner_)->size(), 12u);
  options.top_k = 5;
  EXPECT_THAT(std::string(objective_->Sample(model_, {8, 8}, options, runner_)
                              .status()
                              .message()),
              HasSubstr("top_k"));
}

// Lengths that don't divide each other stop a run before it begins, but not a
// caller who samples another length.
TEST_F(MaskedDiffusionTest, LengthsHaveToDivideEachOther) {
  Config config;
  config.set_block_length(5);
  SetConfig(config);
  EXPECT_EQ(FieldOf(objective_->Check(model_, FakeData(32, nullptr))),
            "block_length");
  SampleOptions options;
  options.max_new_tokens = 10;
  EXPECT_TRUE(objective_->Sample(model_, {8}, options, runner_).ok());
  config.set_max_new_tokens(10);
  config.set_steps(3);
  SetConfig(config);
  EXPECT_EQ(FieldOf(objective_->Check(model_, FakeData(32, nullptr))), "steps");
}

// on_text has the model's mask token, whatever the sampler's is.
TEST_F(MaskedDiffusionTest, TextsAreToldWithTheModelsMask) {
  Config config;
  config.set_max_new_tokens(2);
  config.set_mask_token_id(11);
  SetConfig(config);
  SampleOptions options;
  std::vector<int64_t> told;
  options.on_text = [&told](absl::Span<const int64_t> text) {
    if (told.empty()) told.assign(text.begin(), text.end());
  };
  ASSERT_TRUE(objective_->Sample(model_, {8}, options, runner_).ok());
  EXPECT_THAT(told, ElementsAre(8, 0, kMask));
  EXPECT_THAT(Values(model_.inputs[0].tokens), ElementsAre(8, 11, 11));
}

TEST_F(MaskedDiffusionTest, BadPromptsAreErrors) {
  for (const std::vector<int64_t>& prompt :
       {std::vector<int64_t>{}, {12}, {-1}, std::vector<int64_t>(32, 1)}) {
    EXPECT_FALSE(objective_->Sample(model_, prompt, {}, runner_).ok());
  }
  model_.is_causal = true;
  EXPECT_FALSE(objective_->Sample(model_, {1}, {}, runner_).ok());
}

TEST_F(MaskedDiffusionTest, BadConfigNamesItsField) {
  const auto field = [](const Config& config) {
    return FieldOf(MaskedDiffusion::Create(config).status()).value_or("");
  };
  Config config;
  config.set_eps(0.0);
  EXPECT_EQ(field(config), "eps");
  config = Config();
  config.set_random_length_ratio(1.5);
  EXPECT_EQ(field(config), "random_length_ratio");
  config = Config();
  config.set_mask_token_id(-2);
  EXPECT_EQ(field(config), "mask_token_id");
  config = Config();
  config.set_max_new_tokens(-1);
  EXPECT_EQ(field(config), "max_new_tokens");
  config = Config();
  config.set_block_length(-1);
  EXPECT_EQ(field(config), "block_length");
  config = Config();
  config.set_loss(static_cast<Config::Loss>(7));
  EXPECT_EQ(field(config), "loss");
  config = Config();
  config.set_remasking(static_cast<Config::Remasking>(7));
  EXPECT_EQ(field(config), "remasking");
}

}  // namespace
}  // namespace capstan::masked_diffusion
