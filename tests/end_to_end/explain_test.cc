// SPDX-License-Identifier: Apache-2.0
//
// Errors with their codes, and what explains configs: help, schema, completion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string OutputOf(const std::vector<std::string>& args) {
  const TrainerResult result = RunTrainer(args);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

TEST(ExplainTest, AnErrorsCodeHasItsPage) {
  const std::string config =
      WriteText(NewTestFolder("code") + "/run.pbtxt", "train { max_step: 7 }");
  const TrainerResult result = RunTrainer({"check", "--config=" + config});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("[config/unknown-field]\n"));
  EXPECT_THAT(OutputOf({"explain", "[config/unknown-field]"}),
              HasSubstr("--apply"));
  EXPECT_THAT(OutputOf({"explain"}), HasSubstr("\nconfig/unknown-field  "));
  EXPECT_EQ(RunTrainer({"explain", "config/unknown"}).exit_code, 1);
}

TEST(ExplainTest, ApplyWritesTheRightLine) {
  RunText run;
  std::string text = run.Text();
  const size_t at = text.find("max_steps");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 9, "max_step");
  const std::string config =
      WriteText(NewTestFolder("apply") + "/run.pbtxt", text);
  const std::string out = OutputOf({"check", "--config=" + config, "--apply"});
  EXPECT_THAT(out, AllOf(HasSubstr("\n+"), HasSubstr("\nOK: ")));
  EXPECT_EQ(ReadText(config), run.Text());
  // For programs JSON alone.
  WriteText(config, text);
  const TrainerResult json =
      RunTrainer({"check", "--config=" + config, "--apply", "--json"});
  EXPECT_TRUE(nlohmann::json::accept(json.out)) << json.out;
  EXPECT_THAT(json.err, HasSubstr("\n+"));
  EXPECT_EQ(ReadText(config), run.Text());
}

TEST(ExplainTest, WrongWordsNameTheRightOnes) {
  TrainerResult result = RunTrainer({"evaluate"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean eval? [command/unknown]"));
  result = RunTrainer({"check", "--plugin-path=a"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("did you mean --plugin_path?"));
  result = RunTrainer({"--num_train_epochs=3"});
  EXPECT_THAT(result.err, HasSubstr("--set train.max_epochs=.."));
  EXPECT_EQ(RunTrainer({"-"}).exit_code, 2);
  result = RunTrainer({"generate", "--modle=model", "--prompt=x"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("did you mean --model?"),
                                HasSubstr("(generate --help)")));
  EXPECT_THAT(RunTrainer({"chat", "model"}).err, HasSubstr("--model=model"));
  EXPECT_THAT(RunTrainer({"generate"}).err,
              HasSubstr("--model is required (generate --help)"));
  const std::string config =
      WriteText(NewTestFolder("words") + "/run.pbtxt", RunText().Text());
  EXPECT_THAT(
      RunTrainer({"check", config, "--set", "train.max_steps", "5"}).err,
      HasSubstr("did you mean --set train.max_steps=5?"));
  EXPECT_THAT(RunTrainer({"run_distributed"}).err,
              HasSubstr("did you mean run_distributed.pbtxt?"));
  EXPECT_THAT(RunTrainer({"--config", "run_distributed"}).err,
              HasSubstr("did you mean run_distributed.pbtxt?"));
}

TEST(ExplainTest, WrongValuesOfFlagsAreTold) {
  const auto error = [](const std::vector<std::string>& words) {
    const TrainerResult result = RunTrainer(words);
    EXPECT_EQ(result.exit_code, 2);
    return result.err;
  };
  EXPECT_THAT(error({"generate", "--model=a", "--prompt=b", "--prompt=c"}),
              StartsWith("ERROR: --prompt: takes one value, and is given 2: "
                         "leave all but one out [command/flag]"));
  EXPECT_THAT(error({"eval", "--model=a", "--task"}),
              HasSubstr("--task: needs a value: --task=FILE.yaml "
                        "[command/flag]"));
  EXPECT_THAT(error({"generate", "--model=a", "--top_k=x"}),
              HasSubstr("--top_k: must be a whole number, is x "
                        "[command/flag]"));
  EXPECT_THAT(error({"generate", "--model=a", "--seed=x"}),
              HasSubstr("--seed: must be a whole number, 0 or greater, is x"));
  EXPECT_THAT(error({"generate", "--model=a", "--top_p=x"}),
              HasSubstr("--top_p: must be a number, is x"));
  EXPECT_THAT(error({"generate", "--model=a", "--greedy=maybe"}),
              HasSubstr("--greedy: takes no value, is maybe"));
}

// Of a page whose first sentence has more than a line.
TEST(ExplainTest, TheListHasWholeSentences) {
  for (const absl::string_view line :
       absl::StrSplit(OutputOf({"explain"}), '\n', absl::SkipEmpty())) {
    EXPECT_TRUE(absl::EndsWith(line, ".")) << line;
  }
}

TEST(ExplainTest, HelpFindsFieldsPluginsAndOthersNames) {
  EXPECT_THAT(OutputOf({"help", "train.log_every"}),
              AllOf(StartsWith("train.log_every: integer (steps), default: 10"),
                    HasSubstr("logging_steps")));
  EXPECT_THAT(OutputOf({"help", "logging_steps"}),
              HasSubstr("train.log_every: "));
  EXPECT_THAT(OutputOf({"help", "optimizer.learning_rate"}),
              AllOf(HasSubstr("capstan.adamw"), HasSubstr("capstan.sgd")));
  EXPECT_THAT(OutputOf({"help", "strategy"}), HasSubstr("capstan.fsdp"));
  EXPECT_THAT(OutputOf({"help", "capstan.fsdp"}), HasSubstr("prefetch"));
  EXPECT_EQ(RunTrainer({"help", "no_such_thing"}).exit_code, 1);
  ExpectOneError(RunTrainer({"help", "learning_rat"}),
                 {"did you mean learning_rate?"});
  EXPECT_EQ(OutputOf({"help"}), OutputOf({"--help"}));
}

TEST(ExplainTest, WhatCantBePrintedIsAnErrorAndNoTerminalsCommand) {
  const std::string full =
      absl::StrCat(Runfile("trainer/trainer"), " schema > /dev/full 2>&1");
  EXPECT_NE(std::system(full.c_str()), 0);
  EXPECT_THAT(RunTrainer({"explain", "\x1b[2J"}).err, Not(HasSubstr("\x1b")));
}

// After a change of a .proto: trainer help --markdown > docs/settings.md
TEST(ExplainTest, TheSettingsPageIsWhatHelpPrints) {
  EXPECT_EQ(OutputOf({"help", "--markdown"}),
            ReadText(Runfile("docs/settings.md")));
}

// After a change of a .proto or a command: trainer help --llms > docs/llms.txt
TEST(ExplainTest, ThePageForLanguageModelsIsWhatHelpPrints) {
  EXPECT_EQ(OutputOf({"help", "--llms"}), ReadText(Runfile("docs/llms.txt")));
}

TEST(ExplainTest, TheSchemaHasPluginsAndMessages) {
  const auto schema = nlohmann::json::parse(OutputOf({"schema"}));
  const auto& all = schema.at("$defs");
  EXPECT_EQ(all.at("capstan.Train").at("properties").at("max_steps").at("type"),
            "integer");
  EXPECT_EQ(all.at("capstan.RunConfig")
                .at("properties")
                .at("strategy")
                .at("properties")
                .at("[plugin/capstan.ddp.Config]")
                .at("$ref"),
            "#/$defs/capstan.ddp.Config");
  EXPECT_TRUE(all.contains("capstan.ddp.Config"));
}

TEST(ExplainTest, FactsAreThereAsJson) {
  RunText run;
  const auto check = nlohmann::json::parse(
      OutputOf({"check", "--config=" + run.File(), "--json"}));
  EXPECT_EQ(check.at("strategy"), "capstan.single");
  EXPECT_EQ(check.at("steps"), 6);
  const auto plugins = nlohmann::json::parse(OutputOf({"plugins", "--json"}));
  EXPECT_GT(plugins.size(), 10);
  EXPECT_TRUE(plugins.at(0).contains("category"));
  EXPECT_TRUE(
      nlohmann::json::parse(OutputOf({"env", "--json"})).contains("cores"));
}

TEST(ExplainTest, JsonReplacesBytesThatArentUtf8) {
  TrainerOptions options;
  options.environment["MASTER_ADDR"] = "caf\xe9";
  const TrainerResult result = RunTrainer({"env", "--json"}, options);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out).at("MASTER_ADDR"),
            "caf\xef\xbf\xbd");
}

// What bash offers for a line that ends at the cursor.
std::vector<std::string> Completed(const std::string& script,
                                   const std::string& line) {
  const std::string command =
      absl::StrCat("bash -c 'source ", script, "; COMP_LINE=\"", line,
                   "\"; COMP_POINT=${#COMP_LINE}; _trainer; "
                   "echo \"${COMPREPLY[@]}\"'");
  FILE* const pipe = popen(command.c_str(), "r");
  std::string text;
  char piece[4096];
  while (fgets(piece, sizeof(piece), pipe) != nullptr) text += piece;
  EXPECT_EQ(pclose(pipe), 0);
  return absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

TEST(ExplainTest, BashCompletesCommandsFlagsFieldsAndPlugins) {
  const std::string script =
      WriteText(NewTestFolder("completion") + "/trainer.bash",
                OutputOf({"completion", "bash"}));
  EXPECT_THAT(Completed(script, "trainer chec"), ElementsAre("check"));
  EXPECT_THAT(Completed(script, "trainer plan --gpu_"),
              ElementsAre("--gpu_memory"));
  EXPECT_THAT(Completed(script, "trainer check --set train.max_e"),
              ElementsAre("train.max_epochs="));
  EXPECT_THAT(Completed(script, "trainer check --set strategy=capstan.d"),
              ElementsAre("capstan.ddp", "capstan.diloco"));
  // A file's name is no command.
  const std::string folder = NewTestFolder("named");
  std::filesystem::create_directories(folder + "/configs");
  WriteText(folder + "/configs/$(touch ran)", "");
  WriteText(folder + "/configs/mine.pbtxt", "");
  EXPECT_THAT(Completed("/dev/null; cd " + folder + "; source " + script,
                        "trainer --config "),
              Contains("mine.pbtxt"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/ran"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/configs/ran"));
  EXPECT_THAT(OutputOf({"completion", "fish"}),
              HasSubstr("complete -c trainer -l set"));
}

}  // namespace
}  // namespace capstan
