// SPDX-License-Identifier: Apache-2.0
//
// Texts by the settings of a generation_config.json against what transformers'
// generate makes of them (make_generation.py).
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "plugins/model/llama/llama.h"
#include "plugins/objective/causal_lm/causal_lm.h"
#include "plugins/sdk/lib/generation_config.h"
#include "plugins/sdk/objective.h"

namespace capstan {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr char kData[] = "tests/golden/testdata/";

Json Cases() {
  return Json::parse(
      std::ifstream(std::string(kData) + "generation/cases.json"));
}

void BindInitial(Model* model) {
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    parameters.push_back(at::empty(model->parameters()[i].shape, at::kFloat));
    ASSERT_TRUE(model
                    ->InitialValue(static_cast<int>(i), 0, 0,
                                   parameters.back().numel(),
                                   parameters.back().mutable_data_ptr<float>())
                    .ok());
  }
  model->Bind(std::move(parameters));
}

class GenerationTest : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    case_ = Cases()[GetParam()];
    folder_ = fs::path(testing::TempDir()) /
              ("generation" + std::to_string(GetParam()));
    fs::remove_all(folder_);
    fs::copy(std::string(kData) + "llama", folder_,
             fs::copy_options::recursive);
    fs::remove(folder_ / "generation_config.json");
    std::ofstream(folder_ / "generation_config.json")
        << case_["settings"].dump();
    llama::Config config;
    config.set_pretrained(folder_.string());
    auto model = llama::Llama::Create(config);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    BindInitial(model_.get());
    const std::vector<int64_t> text = case_["texts"][0];
    prompt_.assign(text.begin(), text.begin() + 8);
  }
  void TearDown() override { fs::remove_all(folder_); }

  Json case_;
  fs::path folder_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<causal_lm::CausalLm> objective_ =
      *causal_lm::CausalLm::Create(causal_lm::Config());
  std::vector<int64_t> prompt_;
  PlainRunner runner_;
};

// Of a text that ended, transformers fills up the rest with an end token, since
// its padding's id is 0.
void ExpectText(const std::vector<int64_t>& text, std::vector<int64_t> wanted,
                int64_t fill) {
  ASSERT_LE(text.size(), wanted.size());
  for (size_t i = text.size(); i < wanted.size(); ++i) {
    EXPECT_EQ(wanted[i], fill);
  }
  wanted.resize(text.size());
  EXPECT_EQ(text, wanted);
}

TEST_P(GenerationTest, WritesWhatTransformersWrites) {
  const auto config = GenerationConfigOf(*model_->token_model());
  ASSERT_TRUE(config.ok()) << config.status();
  const std::vector<std::vector<int64_t>> wanted = case_["texts"];
  const Json& ends = case_["settings"]["eos_token_id"];
  const int64_t fill = ends.is_array() ? ends[0] : ends;
  if (config->beams.beams == 1) {
    const auto text =
        objective_->Sample(*model_, prompt_, SampleOptions(), runner_);
    ASSERT_TRUE(text.ok()) << text.status();
    ExpectText(*text, wanted[0], fill);
    return;
  }
  const auto beams = objective_->SearchBeams(*model_, prompt_, SampleOptions(),
                                             config->beams, runner_);
  ASSERT_TRUE(beams.ok()) << beams.status();
  ASSERT_EQ(beams->size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    ExpectText((*beams)[i].text, wanted[i], fill);
    EXPECT_NEAR((*beams)[i].score, case_["scores"][i].get<double>(), 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GenerationTest,
                         testing::Range<size_t>(0, Cases().size()));

// A flag comes before the file.
TEST(GenerationFlagsTest, FlagsComeFirst) {
  const std::string folder = std::string(kData) + "llama";
  llama::Config config;
  config.set_pretrained(folder);
  const std::unique_ptr<Model> model = *llama::Llama::Create(config);
  BindInitial(model.get());
  const Json golden = Json::parse(std::ifstream(folder + "/golden.json"));
  const std::vector<int64_t> greedy = golden["greedy"];
  causal_lm::Config settings;
  settings.set_repetition_penalty(1.3);
  settings.set_greedy(true);
  const auto objective = *causal_lm::CausalLm::Create(settings);
  SampleOptions options;
  options.max_new_tokens = 4;
  PlainRunner runner;
  const std::vector<int64_t> prompt(greedy.begin(), greedy.begin() + 8);
  const auto penalized = *objective->Sample(*model, prompt, options, runner);
  options.repetition_penalty = 1.0;
  const auto text = *objective->Sample(*model, prompt, options, runner);
  EXPECT_EQ(text, std::vector<int64_t>(greedy.begin(), greedy.begin() + 12));
  EXPECT_NE(text, penalized);
}

}  // namespace
}  // namespace capstan
