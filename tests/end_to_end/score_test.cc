// SPDX-License-Identifier: Apache-2.0
//
// trainer score: a reward model's numbers are those of its evaluation, and as
// rewards those of its command.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;

std::string File(const std::string& text) {
  return WriteText(NewTestFolder("rows") + "/rows.jsonl", text);
}

std::string Pair(int i) {
  return absl::StrCat("{\"prompt\": \"Count ", i, ":\", \"chosen\": \" ", i,
                      " and ", i + 1, "\", \"rejected\": \" no\"}\n");
}

std::string ChatPair(int i) {
  return absl::StrCat(
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"Count ", i,
      "\"}], \"chosen\": [{\"role\": \"assistant\", \"content\": \"", i,
      "\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": \"no ", i,
      "\"}]}\n");
}

std::string Pairs(const std::string& path, const std::string& template_is) {
  return absl::StrCat("[plugin/capstan.chat.Config] { path: '", path,
                      "' tokenizer: '", Runfile("datasets/samples/tokenizer"),
                      "' kind: PREFERENCE max_length: 96 ", template_is, " }");
}

RunText RewardRun(const std::string& rows,
                  const std::string& template_is = "chat_template: 'chatml'") {
  const std::string config = WriteText(
      NewTestFolder("model") + "/config.json",
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
          "vocab_size": 4096, "hidden_size": 32, "intermediate_size": 48,
          "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "max_position_embeddings": 128,
          "bos_token_id": 1, "eos_token_id": 2})");
  return RunText()
      .Set("model", absl::StrCat("[plugin/capstan.decoder.Config] { config: '",
                                 config, "' score_head: true }"))
      .Set("objective", "[plugin/capstan.reward.Config] {}")
      .Set("train_data", Pairs(rows, template_is))
      .Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 1e-2 }")
      .Batch(4, 4)
      .Train("max_steps: 6");
}

// A reward model's run.
const std::string& Trained() {
  static const std::string* const folder = [] {
    std::string rows;
    for (int i = 0; i < 8; ++i) rows += Pair(i) + ChatPair(i);
    return new std::string(MustTrain(RewardRun(File(rows))));
  }();
  return *folder;
}

std::vector<double> Score(const std::string& lines,
                          std::vector<std::string> more = {},
                          const std::string& model = Trained()) {
  more.insert(more.begin(),
              {"score", "--model=" + model, "--input=" + File(lines)});
  const TrainerResult result = RunTrainer(more);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<double> scores;
  for (absl::string_view line :
       absl::StrSplit(result.out, '\n', absl::SkipEmpty())) {
    scores.push_back(nlohmann::json::parse(line)["reward"]);
  }
  return scores;
}

std::string Line(const std::string& row, const char* answer) {
  const nlohmann::json json = nlohmann::json::parse(row);
  return nlohmann::json{{"prompt", json["prompt"]},
                        {"completion", json[answer]}}
             .dump() +
         "\n";
}

void ExpectAsEvaluated(const std::string& model, const std::string& row) {
  const TrainerResult told =
      RunTrainer({"eval", "--model=" + model, "--data=" + File(row), "--set",
                  "eval_data.validation_fraction=0", "--json"});
  ASSERT_EQ(told.exit_code, 0) << told.err;
  const nlohmann::json eval = nlohmann::json::parse(told.out);
  const std::vector<double> scores =
      Score(Line(row, "chosen") + Line(row, "rejected"), {}, model);
  ASSERT_EQ(scores.size(), 2);
  // But for rounding, as evaluations don't compute deterministically.
  EXPECT_NEAR(scores[0], eval["eval_rewards_chosen"], 1e-6);
  EXPECT_NEAR(scores[1], eval["eval_rewards_rejected"], 1e-6);
}

TEST(ScoreTest, AsTheEvaluationHasIt) {
  for (const std::string& row : {Pair(3), ChatPair(5)}) {
    ExpectAsEvaluated(Trained(), row);
  }
}

TEST(ScoreTest, NoMatterWhatIsBesideIt) {
  std::string lines;
  std::vector<double> alone;
  for (int i = 0; i < 7; ++i) {
    const std::string line = Line(i % 2 == 0 ? Pair(i) : ChatPair(i), "chosen");
    alone.push_back(Score(line)[0]);
    lines += line;
  }
  EXPECT_THAT(Score(lines), ElementsAreArray(alone));
  EXPECT_THAT(Score(lines, {"--batch_size=3", "--threads=2"}),
              ElementsAreArray(alone));
  const std::string file = NewTestFolder("scores") + "/scores.jsonl";
  EXPECT_TRUE(Score(lines, {"--output=" + file}).empty());
  EXPECT_EQ(CountLines(file), 7);
}

// As the run has cut its texts, whichever end it kept.
TEST(ScoreTest, WhatIsTooLongIsCutAsInTraining) {
  const auto many = [](int words) {
    std::string text;
    for (int i = 0; i < words; ++i) text += " many";
    return text;
  };
  // Either end has where the answers differ.
  const std::string row =
      absl::StrCat("{\"prompt\": \"So", many(40), "\", \"chosen\": \" a",
                   many(80), "\", \"rejected\": \" c", many(80), "\"}\n");
  const std::string jinja =
      WriteText(NewTestFolder("template") + "/template.jinja",
                "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>"
                "{% if loud %}!!{% endif %}{% endfor %}");
  for (const char* const truncation : {"KEEP_START", "KEEP_END"}) {
    SCOPED_TRACE(truncation);
    const std::string model = MustTrain(
        RewardRun(File(ChatPair(1) + Pair(2) + row),
                  absl::StrCat("chat_template_file: '", jinja,
                               "' chat_template_kwargs: '{\"loud\": true}' "
                               "truncation: ",
                               truncation))
            .Batch(3, 3)
            .Train("max_steps: 2"));
    ExpectAsEvaluated(model, row);
    ExpectAsEvaluated(model, ChatPair(5));
  }
}

// Of the other lines nothing is lost.
TEST(ScoreTest, WhatTheTokenizerDoesntKnowHasNoScore) {
  const std::string folder = NewTestFolder("ascii");
  std::filesystem::copy(Trained() + "/final", folder,
                        std::filesystem::copy_options::recursive |
                            std::filesystem::copy_options::overwrite_existing);
  // Without line ends.
  nlohmann::json tokenizer = ReadJson(folder + "/tokenizer.json");
  nlohmann::json& vocab = tokenizer["model"]["vocab"];
  nlohmann::json& merges = tokenizer["model"]["merges"];
  const std::string end = "\u010a";
  const auto has_end = [&end](const nlohmann::json& item) {
    return absl::StrContains(item.dump(), end);
  };
  merges.erase(std::remove_if(merges.begin(), merges.end(), has_end),
               merges.end());
  vocab.erase(end);
  WriteText(folder + "/tokenizer.json", tokenizer.dump());
  const TrainerResult result =
      RunTrainer({"score", "--model=" + folder,
                  "--input=" + File("{\"text\": \"a\"}\n{\"text\": \"a\\nb\"}\n"
                                    "{\"text\": \"a\"}\n")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> lines = absl::StrSplit(result.out, '\n');
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0], lines[2]);
  const nlohmann::json none = nlohmann::json::parse(lines[1]);
  EXPECT_TRUE(none["reward"].is_null());
  EXPECT_THAT(none["reason"], HasSubstr("U+000A"));
}

TEST(ScoreTest, WhatIsWrongIsNamed) {
  const std::string model = "--model=" + Trained();
  ExpectOneError(
      RunTrainer({"score", model,
                  "--input=" + File("{\"text\": \"a\"}\n{\"prompt\": 1}\n")}),
      {"rows.jsonl:2: has nothing to score"});
  // Its answer would be the next line's.
  ExpectOneError(
      RunTrainer({"score", model, "--input=" + File("{\"text\": \"a\"}\n\n")}),
      {"rows.jsonl:2: isn't a JSON object"});
  // Nor is half of it left.
  const std::string folder = NewTestFolder("scores");
  ExpectOneError(RunTrainer({"score", model, "--batch_size=1",
                             "--output=" + folder + "/scores.jsonl",
                             "--input=" + File("{\"text\": \"a\"}\n{}\n")}),
                 {"rows.jsonl:2: has nothing to score"});
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  ExpectOneError(RunTrainer({"score", "--model=/no/such/model"}),
                 {"--model=/no/such/model: no such folder"});
}

// 8 answers a step.
RunText GrpoRun(const std::string& reward) {
  std::string prompts;
  for (int i = 0; i < 8; ++i) {
    absl::StrAppend(&prompts, "{\"prompt\": \"Count ", i, ":\"}\n");
  }
  return RunText()
      .Set("model",
           "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: 32 "
           "intermediate_size: 48 num_hidden_layers: 2 num_attention_heads: 4 "
           "num_key_value_heads: 2 max_position_embeddings: 128 "
           "bos_token_id: 1 eos_token_id: 2 }")
      .Set("train_data",
           absl::StrCat("[plugin/capstan.chat.Config] { path: '", File(prompts),
                        "' tokenizer: '", Runfile("datasets/samples/tokenizer"),
                        "' chat_template: 'chatml' kind: PROMPT max_length: 32 "
                        "}"))
      .Set("objective", absl::StrCat("[plugin/capstan.grpo.Config] { "
                                     "num_generations: 4 max_new_tokens: 8 "
                                     "reward { model { ",
                                     reward, " } } }"))
      .Ddp(2)
      .Batch(2, 8)
      .Train(
          "max_steps: 2 log_every: 1 deterministic: true save_every: 1 "
          "keep_checkpoints: 3");
}

TEST(ScoreTest, AReward) {
  const std::string folder =
      MustTrain(GrpoRun(absl::StrCat("path: '", Trained(), "'")));
  const std::vector<double> told =
      ReadMetrics(folder).Values("rewards_model_mean");
  ASSERT_EQ(told.size(), 2);
  for (const int step : {1, 2}) {
    const TrainerResult result =
        RunTrainer({"who", folder, absl::StrCat("--step=", step), "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json who = nlohmann::json::parse(result.out);
    std::string lines;
    std::vector<double> rewards;
    double sum = 0.0;
    for (const nlohmann::json& row : who["rows"]) {
      std::string text = row["texts"][0]["text"];
      const std::string prompt = text.substr(0, text.find(':') + 1);
      text = text.substr(prompt.size());
      if (row["made"]["truncated"] == 0) {
        text = std::string(absl::StripSuffix(text, "<|im_end|>"));
      }
      lines +=
          nlohmann::json{{"text", text}, {"row", {{"prompt", prompt}}}}.dump() +
          "\n";
      rewards.push_back(row["metrics"]["rewards_model_mean"]);
      sum += rewards.back();
    }
    EXPECT_THAT(Score(lines), ElementsAreArray(rewards));
    EXPECT_NEAR(told[step - 1], sum / 8.0, 1e-9);
  }
}

TEST(ScoreTest, ARewardsModelThatIsReplacedIsTold) {
  const std::string judge = NewTestFolder("judge") + "/judge";
  const auto put = [&judge](const std::string& model) {
    std::filesystem::remove_all(judge);
    std::filesystem::copy(model, judge,
                          std::filesystem::copy_options::recursive);
  };
  put(Trained() + "/final");
  RunText run = GrpoRun(absl::StrCat("path: '", judge, "'"));
  run.Output(NewTestFolder("run") + "/out").Train("resume: AUTO");
  const auto told = [&run](int steps) {
    const TrainerResult result =
        RunTrainer({"--config=" + run.File(), "--set",
                    absl::StrCat("train.max_steps=", steps)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  told(1);
  EXPECT_THAT(told(2), Not(HasSubstr("has been replaced since")));
  std::string rows;
  for (int i = 0; i < 8; ++i) {
    rows += absl::StrReplaceAll(
        Pair(i), {{"chosen", "rejected"}, {"rejected", "chosen"}});
  }
  put(MustTrain(RewardRun(File(rows))) + "/final");
  EXPECT_THAT(told(3), HasSubstr("the reward model scores an answer"));
  // Once: the next checkpoint has what this one says.
  EXPECT_THAT(told(4), Not(HasSubstr("has been replaced since")));
}

TEST(ScoreTest, ARewardThatCantBeIsToldBeforeTraining) {
  const auto expect = [](const std::string& path, const std::string& words) {
    RunText run = GrpoRun(absl::StrCat("path: '", path, "'"));
    run.Output(NewTestFolder("run") + "/out");
    ExpectOneError(RunTrainer({"--config=" + run.File()}),
                   {"objective.reward[0].model.path", words});
  };
  expect("/no/such/model", "no such folder");
  expect(MustTrain(RunText().Train("max_steps: 1")), "no head of scores");
}

}  // namespace
}  // namespace capstan
