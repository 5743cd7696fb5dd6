// SPDX-License-Identifier: Apache-2.0
//
// Heads of scores, in the golden folders of some families; tests/golden
// compares what is computed.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/model/decoder/decoder.h"
#include "plugins/model/decoder/decoder_testing.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan::decoder {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Decoder> Open(const std::string& folder, bool score_head) {
  Config config;
  config.set_pretrained(folder);
  config.set_score_head(score_head);
  auto model = Decoder::Create(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

std::string FolderOf(const std::string& family) {
  return "tests/golden/testdata/" + family;
}

std::vector<float> Values(const Model& model, size_t index) {
  std::vector<float> values(model.parameters()[index].numel());
  EXPECT_TRUE(model
                  .InitialValue(static_cast<int>(index), 0, 0,
                                static_cast<int64_t>(values.size()),
                                values.data())
                  .ok());
  return values;
}

void BindInitial(Model* model) {
  std::vector<at::Tensor> parameters;
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    parameters.push_back(
        at::tensor(Values(*model, i)).view(model->parameters()[i].shape));
  }
  model->Bind(std::move(parameters));
}

// As a run's final/.
void Save(const Model& model, const std::string& folder) {
  ASSERT_TRUE(model.SaveConfig(folder, at::kFloat).ok());
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors");
  ASSERT_TRUE(writer.ok());
  for (const ParameterSpec& spec : model.parameters()) {
    (*writer)->Declare(spec.name, at::kFloat, spec.shape);
  }
  for (size_t i = 0; i < model.parameters().size(); ++i) {
    const std::vector<float> values = Values(model, i);
    ASSERT_TRUE((*writer)->Append(values.data(), values.size() * 4).ok());
  }
  ASSERT_TRUE((*writer)->Close().ok());
}

at::Tensor ScoresOf(Decoder* model, const std::vector<int64_t>& text,
                    int64_t last) {
  PlainRunner runner;
  TokenInput input;
  input.tokens = at::tensor(text, at::kLong).unsqueeze(0);
  return model->Scores(input, at::full({1}, last, at::kLong), runner).detach();
}

TEST(ScoresTest, ANewHeadTakesThePlaceOfLogits) {
  for (const char* family : {"llama31", "qwen2", "gemma2", "qwen3_moe"}) {
    const std::unique_ptr<Decoder> model = Open(FolderOf(family), true);
    const ParameterSpec& head = model->parameters().back();
    EXPECT_EQ(head.name, "score.weight") << family;
    EXPECT_EQ(head.shape[0], 1);
    for (const ParameterSpec& spec : model->parameters()) {
      EXPECT_NE(spec.name, "lm_head.weight") << family;
      EXPECT_TRUE(spec.other_units.empty()) << spec.name;
    }
    EXPECT_EQ(model->text_scores(), model.get());
    EXPECT_EQ(model->row_losses(), nullptr);
    EXPECT_THAT(std::string(CheckLogits(*model).message()),
                HasSubstr("scores texts"));
    EXPECT_EQ(Open(FolderOf(family), false)->text_scores(), nullptr);
  }
}

TEST(ScoresTest, ASavedFolderIsKnownAndScoresTheSame) {
  for (const char* family : {"llama31", "qwen2", "gemma2"}) {
    const std::unique_ptr<Decoder> model = Open(FolderOf(family), true);
    const std::string folder = TestFolder(family);
    Save(*model, folder);
    Json json = Json::parse(std::ifstream(folder + "/config.json"));
    EXPECT_THAT(json["architectures"][0].get<std::string>(),
                ::testing::EndsWith("ForSequenceClassification"));
    EXPECT_EQ(json["id2label"].size(), 1u);
    const std::unique_ptr<Decoder> saved = Open(folder, false);
    ASSERT_NE(saved, nullptr);
    EXPECT_EQ(saved->sampling_objective(), "capstan.reward");
    ASSERT_EQ(saved->parameters().size(), model->parameters().size());
    for (size_t i = 0; i < model->parameters().size(); ++i) {
      EXPECT_EQ(Values(*saved, i), Values(*model, i))
          << model->parameters()[i].name;
    }
    BindInitial(model.get());
    BindInitial(saved.get());
    EXPECT_TRUE(ScoresOf(model.get(), {5, 6, 7}, 2)
                    .equal(ScoresOf(saved.get(), {5, 6, 7}, 2)));
    json["id2label"]["1"] = "LABEL_1";
    json.erase("num_labels");
    EXPECT_THAT(std::string(ReadJson(json).status().message()),
                HasSubstr("config.json: id2label has 2 labels"));
  }
}

TEST(ScoresTest, WhatIsBehindTheLastTokenDoesNotCount) {
  const std::unique_ptr<Decoder> model = Open(FolderOf("qwen2"), true);
  BindInitial(model.get());
  const at::Tensor alone = ScoresOf(model.get(), {5, 6, 7}, 2);
  EXPECT_TRUE(alone.allclose(ScoresOf(model.get(), {5, 6, 7, 9, 9}, 2)));
  EXPECT_FALSE(alone.allclose(ScoresOf(model.get(), {5, 6, 7, 9, 9}, 4)));
}

TEST(ScoresTest, InferenceFormsScoreAlike) {
  const std::unique_ptr<Decoder> model = Open(FolderOf("qwen2"), true);
  BindInitial(model.get());
  const at::Tensor wanted = ScoresOf(model.get(), {5, 6, 7}, 2);
  std::vector<at::Tensor> weights;
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    weights.push_back(
        at::tensor(Values(*model, i)).view(model->parameters()[i].shape));
  }
  ASSERT_TRUE(
      model->BindForInference(std::move(weights), WeightForm::kFloat32).ok());
  EXPECT_TRUE(wanted.allclose(ScoresOf(model.get(), {5, 6, 7}, 2), 1e-4, 1e-5));
}

TEST(ScoresTest, AnAdapterTrainsANewHeadWhole) {
  LoraSpec spec;
  spec.target_modules = {"q_proj"};
  const std::unique_ptr<Decoder> frozen = Open(FolderOf("qwen2"), true);
  EXPECT_THAT(std::string(frozen->AddLora(spec).message()),
              HasSubstr("must name score"));
  const std::unique_ptr<Decoder> model = Open(FolderOf("qwen2"), true);
  ASSERT_TRUE(model->SetModulesToSave({"score"}).ok());
  ASSERT_TRUE(model->AddLora(spec).ok());
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    const ParameterSpec& parameter = model->parameters()[i];
    if (parameter.name != "score.weight") continue;
    EXPECT_TRUE(parameter.trainable);
    EXPECT_THAT(model->SavedNames(static_cast<int>(i)),
                ::testing::ElementsAre("base_model.model.score.weight"));
  }
}

}  // namespace
}  // namespace capstan::decoder
