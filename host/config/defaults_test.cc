// SPDX-License-Identifier: Apache-2.0
//
// What a run takes where its config says nothing.
#include "host/config/defaults.h"

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kFineTune[] = R"(
model { [plugin/capstan.llama.Config] { pretrained: "model" } }
train_data { [plugin/capstan.chat.Config] { path: "chats.jsonl" } }
)";

class DefaultsTest : public ::testing::Test {
 protected:
  DefaultsTest()
      : host_({absl::StrCat(std::getenv("TEST_SRCDIR"),
                            "/capstan/trainer/plugins")}),
        folder_(::testing::TempDir()) {
    context_.host = &host_;
    context_.caller_folder = folder_;
  }

  absl::StatusOr<LoadedConfig> Load(
      const std::string& text, const std::vector<std::string>& overrides = {}) {
    std::ofstream(folder_ + "/run.pbtxt") << text;
    return LoadConfig({"run.pbtxt"}, overrides, context_);
  }

  // The config as it would be written.
  std::string Filled(const std::string& text,
                     const std::vector<std::string>& overrides = {}) {
    const auto loaded = Load(text, overrides);
    return loaded.ok() ? PrintConfig(loaded->config)
                       : std::string(loaded.status().message());
  }

  PluginHost host_;
  const std::string folder_;
  ConfigContext context_;
};

TEST_F(DefaultsTest, TwoLinesAreAFineTune) {
  const auto loaded = Load(kFineTune);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(CheckWhole(loaded->config).ok());
  const std::string text = PrintConfig(loaded->config);
  for (const char* part :
       {"capstan.causal_lm", "capstan.ddp", "capstan.auto",
        "learning_rate: 2e-05", "kind: LINEAR", "max_epochs: 3",
        "max_grad_norm: 1\n", "micro_batch_size: AUTO", "shuffle: true"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(
      absl::StrJoin(loaded->notes, "\n"),
      AllOf(HasSubstr("defaults of every run: strategy capstan.ddp, precision"),
            HasSubstr("defaults of capstan.chat: objective capstan.causal_lm"),
            HasSubstr("train (max_epochs 3)"), Not(HasSubstr("pretrained"))));
  // What is printed takes none anew.
  const auto again = Load(text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(PrintConfig(again->config), text);
  EXPECT_THAT(again->notes, IsEmpty());
}

TEST_F(DefaultsTest, WhatTheConfigSaysCountsMoreEvenIfItIsNothing) {
  const std::string text = Filled(
      absl::StrCat(kFineTune,
                   "strategy { [plugin/capstan.fsdp.Config] {} }\n"
                   "schedule { kind: CONSTANT }\n"
                   "optimizer { [plugin/capstan.adamw.Config] {"
                   " state: EIGHT_BIT } }\n"
                   "train { max_steps: 9 max_grad_norm: 0 save_every: 0 }"),
      {"optimizer.weight_decay=0.5", "train_data.shuffle=false"});
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("capstan.fsdp"), HasSubstr("max_steps: 9"),
            HasSubstr("max_grad_norm: 0\n"), HasSubstr("state: EIGHT_BIT"),
            HasSubstr("learning_rate: 2e-05"), HasSubstr("weight_decay: 0.5")));
  for (const char* part :
       {"capstan.ddp", "LINEAR", "max_epochs", "save_every", "shuffle"}) {
    EXPECT_THAT(text, Not(HasSubstr(part)));
  }
  // Of a plugin that only --set names, too.
  EXPECT_THAT(Filled(kFineTune,
                     {"optimizer=capstan.sgd", "optimizer.learning_rate=0.1"}),
              AllOf(HasSubstr("capstan.sgd"), Not(HasSubstr("adamw"))));
}

TEST_F(DefaultsTest, DependOnTheKindOfRun) {
  EXPECT_THAT(Filled(kFineTune, {"adapter.lora.rank=8"}),
              HasSubstr("learning_rate: 0.0002"));
  EXPECT_THAT(Filled(kFineTune, {"model.pretrained=", "model.hidden_size=8"}),
              AllOf(HasSubstr("learning_rate: 0.001"), HasSubstr("COSINE")));
  EXPECT_THAT(
      Filled(kFineTune, {"objective=capstan.dpo"}),
      AllOf(HasSubstr("kind: PREFERENCE"), HasSubstr("learning_rate: 1e-06")));
  EXPECT_THAT(Filled(kFineTune, {"model=capstan.llada", "model.pretrained=x"}),
              AllOf(HasSubstr("capstan.masked_diffusion"),
                    HasSubstr("loss: SFT"), HasSubstr("2.5e-05")));
  const std::string histories =
      "train_data { [plugin/capstan.ad_history.Config] { path: \"h\" } }";
  EXPECT_THAT(Filled(histories), AllOf(HasSubstr("n_transit: 80"),
                                       HasSubstr("micro_batch_size: 512")));
}

// As a share of the run, however long it is: a resumed run may be longer.
TEST_F(DefaultsTest, WarmUpGrowsWithTheRun) {
  const std::string text =
      "model { [plugin/capstan.llama.Config] { hidden_size: 8 } }\n"
      "train_data { [plugin/capstan.text.Config] { path: \"t\" } }\n";
  for (const char* steps : {"99", "100", "5000"}) {
    EXPECT_THAT(
        Filled(text, {absl::StrCat("train.max_steps=", steps)}),
        AllOf(HasSubstr("warmup_ratio: 0.02"), Not(HasSubstr("warmup_steps"))));
  }
}

TEST_F(DefaultsTest, ACompleteConfigOrOneOfNoRunTakesNone) {
  const auto complete = Load(absl::StrCat(kFineTune, "complete: true"));
  ASSERT_TRUE(complete.ok()) << complete.status();
  EXPECT_FALSE(complete->config.has_objective());
  EXPECT_THAT(complete->notes, IsEmpty());
  const auto collect = Load("collect { [plugin/capstan.darkroom.Config] {} }");
  ASSERT_TRUE(collect.ok()) << collect.status();
  EXPECT_FALSE(collect->config.has_strategy());
}

TEST_F(DefaultsTest, EvaluationDataIsReadAsTrainingDataIs) {
  const std::string train =
      "train_data { [plugin/capstan.chat.Config] { path: \"a\" max_length: 77"
      " loss_on: ASSISTANT validation_fraction: 0.1 } }\n";
  const std::string model =
      "model { [plugin/capstan.llama.Config] { pretrained: \"m\" } }\n";
  const auto eval = [](const absl::StatusOr<LoadedConfig>& loaded) {
    return loaded.ok() ? PrintConfig(loaded->config.eval_data())
                       : std::string(loaded.status().message());
  };
  const auto same =
      AllOf(HasSubstr("/b\""), HasSubstr("max_length: 77"),
            HasSubstr("ASSISTANT"), Not(HasSubstr("validation_fraction")));
  EXPECT_THAT(
      eval(Load(absl::StrCat(
          model, train,
          "eval_data { [plugin/capstan.chat.Config] { path: \"b\" } }"))),
      same);
  EXPECT_THAT(eval(Load(model + train, {"eval_data.path=b"})), same);
  EXPECT_THAT(
      eval(Load(absl::StrCat(
          model, train,
          "eval_data { [plugin/capstan.text.Config] { path: \"b\" } }"))),
      AllOf(HasSubstr("capstan.text"), Not(HasSubstr("max_length"))));
}

TEST_F(DefaultsTest, SoAreFurtherSets) {
  const auto loaded = Load(
      "model { [plugin/capstan.llama.Config] { pretrained: \"m\" } }\n"
      "train_data { [plugin/capstan.chat.Config] { path: \"a\" max_length: 77 "
      "shuffle: true validation_fraction: 0.1 } }\n"
      "eval_sets { name: \"b\" data { [plugin/capstan.chat.Config] { "
      "path: \"b\" shuffle: false } } }\n"
      "eval_sets { name: \"c\" data { [plugin/capstan.text.Config] { "
      "path: \"c\" } } }\n"
      "eval_tasks { files: \"t/x.yaml\" files: \"y.yaml\" }\n");
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const RunConfig& config = loaded->config;
  EXPECT_THAT(PrintConfig(config.eval_sets(0)),
              AllOf(HasSubstr("/b\""), HasSubstr("max_length: 77"),
                    Not(HasSubstr("shuffle")), Not(HasSubstr("fraction"))));
  EXPECT_THAT(PrintConfig(config.eval_sets(1)),
              AllOf(HasSubstr("/c\""), Not(HasSubstr("max_length"))));
  // Each path of a list is one.
  EXPECT_EQ(config.eval_tasks().files(0).front(), '/');
  EXPECT_THAT(config.eval_tasks().files(1), EndsWith("/y.yaml"));
}

TEST_F(DefaultsTest, AllThatIsMissingIsSaidAtOnce) {
  const auto empty = Load("");
  ASSERT_TRUE(empty.ok());
  EXPECT_THAT(std::string(CheckWhole(empty->config).message()),
              AllOf(HasSubstr("lacks model, train_data:"),
                    HasSubstr("\n  model { [plugin/"),
                    HasSubstr("\n  train_data { [plugin/"),
                    Not(HasSubstr("optimizer"))));
  const auto complete = Load("complete: true");
  ASSERT_TRUE(complete.ok());
  EXPECT_THAT(std::string(CheckWhole(complete->config).message()),
              HasSubstr("lacks model, objective, train_data, strategy, "
                        "precision, optimizer:"));
}

}  // namespace
}  // namespace capstan
