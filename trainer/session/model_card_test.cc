// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/model_card.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <string>

#include "base/files.h"
#include "host/config/load_config.h"
#include "trainer/session/base_model_for_test.pb.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelCardTest : public ::testing::Test {
 protected:
  ModelCardTest() {
    EXPECT_NE(mkdtemp(&folder_[0]), nullptr);
    config_.set_name("mine");
    config_.set_output_dir("/machine/runs/mine");
    config_.mutable_model()->set_type_url("plugin/acme.unknown.Config");
    config_.mutable_adapter()->mutable_lora()->set_pretrained(
        "/machine/adapters/first/");
    facts_.config = &config_;
    facts_.output_dir = folder_;
  }

  // Its files by name.
  std::map<std::string, std::string> Files() {
    const auto files = ModelCard(facts_);
    EXPECT_TRUE(files.ok()) << files.status();
    return {files->begin(), files->end()};
  }
  std::string Card() { return Files()["README.md"]; }

  std::string folder_ = ::testing::TempDir() + "/card_XXXXXX";
  RunConfig config_;
  ModelCardFacts facts_;
};

TEST_F(ModelCardTest, HasNothingOfTheMachine) {
  facts_.base_model = "/machine/models/SmolLM2-135M";
  facts_.adapter = facts_.tokenizer = true;
  const std::string card = Card();
  EXPECT_THAT(card, AllOf(HasSubstr("# Base model: SmolLM2-135M\n"),
                          HasSubstr("adapter for `SmolLM2-135M`"),
                          HasSubstr("pretrained: \"first\"")));
  EXPECT_THAT(card, Not(HasSubstr("/machine")));
  EXPECT_THAT(card, Not(HasSubstr("output_dir")));
  EXPECT_THAT(card, Not(HasSubstr("FOLDER")));
}

TEST_F(ModelCardTest, CommandsWorkInTheFolder) {
  EXPECT_THAT(Card(),
              AllOf(HasSubstr("AutoModelForCausalLM.from_pretrained(\".\")"),
                    HasSubstr("trainer generate --model=. "),
                    Not(HasSubstr("AutoTokenizer"))));
  facts_.tokenizer = true;
  EXPECT_THAT(Card(), HasSubstr("AutoTokenizer.from_pretrained(\".\")"));
  // A model with code of its own, which sees both sides.
  facts_.causal = false;
  EXPECT_THAT(Card(), Not(HasSubstr("python")));
  facts_.auto_class = "AutoModel";
  EXPECT_THAT(
      Card(),
      HasSubstr("AutoModel.from_pretrained(\".\", trust_remote_code=True)"));
  facts_.texts = false;
  facts_.base_model_field = "pretrained";
  EXPECT_THAT(Card(),
              HasSubstr("[plugin/acme.unknown.Config] { pretrained: \".\" }"));
}

TEST_F(ModelCardTest, AnAdaptersBase) {
  facts_.adapter = true;
  facts_.base_model = "/m/tiny";
  EXPECT_THAT(
      Card(),
      AllOf(HasSubstr("AutoModelForCausalLM.from_pretrained(\"../tiny\")"),
            HasSubstr("PeftModel.from_pretrained(base, \".\")"),
            HasSubstr("trainer merge --model=../tiny --adapter=. ")));
  facts_.base_model = "/h/hub/models--org--tiny/snapshots/0123";
  EXPECT_THAT(
      Card(),
      AllOf(HasSubstr("\nbase_model: org/tiny\n"), HasSubstr("for `org/tiny`"),
            HasSubstr("from_pretrained(\"org/tiny\")"),
            HasSubstr("hf download org/tiny --local-dir ../tiny\n"),
            HasSubstr("trainer merge --model=../tiny --adapter=. ")));
}

// Whatever the model's plugin calls the field.
TEST_F(ModelCardTest, TheBaseIsTheFieldWithTheOption) {
  EXPECT_EQ(BaseModelOf(config_).field, "") << "not loaded";
  base_model_for_test::Config model;
  model.set_pretrained("/machine/something/else");
  config_.mutable_model()->PackFrom(model, "plugin");
  EXPECT_EQ(BaseModelOf(config_).field, "starts_from");
  EXPECT_EQ(BaseModelOf(config_).folder, "");
  model.set_starts_from("/machine/models/tiny");
  config_.mutable_model()->PackFrom(model, "plugin");
  EXPECT_EQ(BaseModelOf(config_).folder, "/machine/models/tiny");
  facts_.texts = false;
  facts_.base_model_field = BaseModelOf(config_).field;
  EXPECT_THAT(Card(), AllOf(HasSubstr("] { starts_from: \".\" } }"),
                            Not(HasSubstr("/machine"))));
  facts_.base_model_field = "";
  EXPECT_THAT(Card(), Not(HasSubstr("{ : ")));
}

TEST_F(ModelCardTest, WhatWasMeasured) {
  ASSERT_TRUE(WriteWholeFile(folder_ + "/metrics.jsonl",
                             "{\"step\": 1, \"loss\": 2.5}\n"
                             "{\"step\": 1, \"eval_mean_return\": 1.5}\n"
                             "{\"step\": 2, \"eval_mean_return\": 14.25}\n")
                  .ok());
  ASSERT_TRUE(WriteWholeFile(folder_ + "/return.svg", "<svg/>").ok());
  facts_.pictures = {"return"};
  std::map<std::string, std::string> files = Files();
  EXPECT_THAT(files["README.md"],
              AllOf(HasSubstr("| last eval_mean_return | 14.2500 |"),
                    HasSubstr("![return in evaluations](return.svg)")));
  EXPECT_EQ(files["return.svg"], "<svg/>");
  EXPECT_EQ(files.count("loss_curve.svg"), 1);
}

}  // namespace
}  // namespace capstan
