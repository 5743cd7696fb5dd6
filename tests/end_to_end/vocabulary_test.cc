// SPDX-License-Identifier: Apache-2.0
//
// A model's vocabulary is the model's, whatever text it meets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

std::string Plugin(const std::string& package, const std::string& fields) {
  return absl::StrCat("[plugin/capstan.", package, ".Config] { ", fields, " }");
}

// Text in lines, of the characters of `alphabet`.
std::string TextOf(const std::string& alphabet) {
  std::string text = alphabet;
  for (size_t i = 0; text.size() < 3000; ++i) {
    text += alphabet[(i * i + i / 7) % alphabet.size()];
    if (i % 40 == 39) text += '\n';
  }
  return WriteText(
      NewTestFolder(absl::StrCat("text", alphabet.size())) + "/text.txt", text);
}

// The model's characters, and some of them, which alone have other ids.
std::string Most() { return TextOf("!#0123456789abcdefghijklmnopqrstuvwxyz "); }
std::string Some() { return TextOf("aeimnorstu "); }

std::string Windows(const std::string& path, const std::string& more = "") {
  return Plugin("llada_windows", absl::StrCat("path: \"", path,
                                              "\" sequence_length: 32 ", more));
}

RunText Run(const std::string& model, const std::string& data) {
  return RunText()
      .Set("model", Plugin("llada", model))
      .Set("objective", Plugin("masked_diffusion", "block_length: 4"))
      .Set("train_data", data)
      .Train("max_steps: 2 save_every: 2");
}

// On Most(), evaluated on Some(); made once.
std::string FirstRun() {
  static const auto* const folder = new std::string(MustTrain(
      Run("vocab_size: 48 d_model: 32 mlp_hidden_size: 88 n_layers: 1 "
          "n_heads: 4 max_sequence_length: 64",
          Windows(Most()))
          .Set("eval_data", Windows(Some()))));
  return *folder;
}

RunText GoesOn(const std::string& data) {
  return Run(absl::StrCat("pretrained: \"", FirstRun(), "/final\""), data);
}

TEST(VocabularyTest, EvaluationsReadOtherTextsWithTheModels) {
  const double loss = ReadMetrics(FirstRun()).evals.back()["eval_loss"];
  // What a vocabulary of its own would give is far from this.
  for (const char* model : {"/final", "/checkpoints/step-00000002"}) {
    for (const std::string& data : {std::string(), "--data=" + Some()}) {
      std::vector<std::string> args = {"eval", "--model=" + FirstRun() + model,
                                       "--loss_only", "--json"};
      if (!data.empty()) args.push_back(data);
      const TrainerResult result = RunTrainer(args);
      ASSERT_EQ(result.exit_code, 0) << result.err;
      EXPECT_NEAR(nlohmann::json::parse(result.out)["eval_loss"], loss, 1e-5)
          << model << data;
    }
  }
}

TEST(VocabularyTest, GoingOnWithAnotherTextKeepsIt) {
  const std::string folder = MustTrain(GoesOn(Windows(Some())));
  for (const char* name : {"/tokenizer.json", "/tokenizer_config.json"}) {
    EXPECT_EQ(ReadText(folder + "/final" + name),
              ReadText(FirstRun() + "/final" + name));
    EXPECT_EQ(ReadText(folder + "/checkpoints/step-00000002" + name),
              ReadText(FirstRun() + "/final" + name));
  }
  const TrainerResult shown =
      RunTrainer({"data", "--config=" + GoesOn(Windows(Some())).File()});
  ASSERT_EQ(shown.exit_code, 0) << shown.err;
  // As in the first run, after "!", "#" and the digits.
  EXPECT_THAT(shown.out, HasSubstr("17:a"));
}

TEST(VocabularyTest, AnotherTokenizerNeedsTheFieldThatSaysSo) {
  const auto check = [](const RunText& run, bool replace = false) {
    std::vector<std::string> words = {"check", "--config=" + run.File()};
    if (replace) words.insert(words.end(), {"--set", "replace_tokenizer=true"});
    return RunTrainer(words);
  };
  const std::string model = FirstRun() + "/final";
  const RunText own = GoesOn(Windows(Some(), "tokenizer { characters {} }"));
  ExpectOneError(check(own), {"train_data.tokenizer",
                              "characters { } is another tokenizer "
                              "than the model's, of " +
                                  model,
                              "id 5 is \"a\" in the one and "
                              "\"!\" in the other",
                              "replace_tokenizer: true"});
  EXPECT_EQ(check(own, /*replace=*/true).exit_code, 0);
  // All of a run's data is read with one tokenizer.
  RunText both = own;
  both.Set("eval_data", Windows(Some(), absl::StrCat("tokenizer { folder: \"",
                                                     model, "\" }")));
  ExpectOneError(check(both, /*replace=*/true),
                 {"eval_data.tokenizer", model, "than train_data's"});

  // Ids in files, of other characters.
  const std::string data = NewTestFolder("npy");
  const TrainerResult written =
      RunTrainer({"llada-data", "--text=" + Some(), "--output=" + data,
                  "--sequence_length=32"});
  ASSERT_EQ(written.exit_code, 0) << written.err;
  ExpectOneError(
      check(GoesOn(
          Plugin("llada_windows", absl::StrCat("folder: \"", data, "\"")))),
      {"train_data",
       "reads tokens of another tokenizer than the model's, of " + model,
       "replace_tokenizer: true"});
  ExpectOneError(
      RunTrainer({"eval", "--model=" + model, "--data=" + Some(), "--set",
                  "eval_data.tokenizer.folder=" +
                      Runfile("datasets/samples/tokenizer")}),
      {"eval_data.tokenizer", "datasets/samples/tokenizer", model});
}

// The same tokens, but another end of text and chat template.
TEST(VocabularyTest, EvaluationsFollowTheTemplateOfTraining) {
  const std::string samples = Runfile("datasets/samples/tokenizer");
  const std::string other = CopyFolder(samples, "other_template");
  nlohmann::json config = ReadJson(other + "/tokenizer_config.json");
  config["eos_token"] = "<|endoftext|>";
  config["chat_template"] =
      "{% for message in messages %}{{ '<|im_start|>' + message['content'] + "
      "'<|endoftext|>' }}{% endfor %}";
  WriteText(other + "/tokenizer_config.json", config.dump());
  std::string rows;
  for (int i = 0; i < 24; ++i) {
    rows += absl::StrCat(
        "{\"messages\": [{\"role\": \"user\", \"content\": "
        "\"What follows ",
        i, "?\"}, {\"role\": \"assistant\", \"content\": \"", i + 1,
        ".\"}]}\n");
  }
  const std::string path = WriteText(NewTestFolder("chats") + "/c.jsonl", rows);
  const auto chat = [&](const std::string& tokenizer) {
    return Plugin("chat",
                  absl::StrCat("path: \"", path, "\" max_length: 96 ",
                               tokenizer.empty() ? "" : "tokenizer: \"",
                               tokenizer, tokenizer.empty() ? "" : "\""));
  };
  const std::string model =
      MustTrain(
          RunText()
              .Set("model",
                   Plugin("llama",
                          "vocab_size: 4096 hidden_size: 32 intermediate_size: "
                          "88 num_hidden_layers: 1 num_attention_heads: 4 "
                          "num_key_value_heads: 2 max_position_embeddings: "
                          "128"))
              .Set("train_data", chat(samples))
              .Train("max_steps: 1")) +
      "/final";
  const auto run = [&](const std::string& eval_tokenizer) {
    return RunText()
        .Set("model", Plugin("llama", "pretrained: \"" + model + "\""))
        .Set("train_data", chat(other))
        .Set("eval_data", chat(eval_tokenizer))
        .Train("max_steps: 1");
  };
  const auto loss = [](const std::string& folder) {
    return ReadMetrics(folder).evals.back()["eval_loss"].get<double>();
  };
  const std::string follows = MustTrain(run(""));
  EXPECT_EQ(loss(follows), loss(MustTrain(run(other))));
  // As of the model that the run leaves.
  const TrainerResult result = RunTrainer(
      {"eval", "--model=" + follows + "/final", "--loss_only", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NEAR(nlohmann::json::parse(result.out)["eval_loss"], loss(follows),
              1e-5);
  ExpectOneError(
      RunTrainer({"check", "--config=" + run(samples).File()}),
      {"eval_data.tokenizer", samples, "another tokenizer than train_data's",
       "the end token is \"<|im_end|>\" in the one and \"<|endoftext|>\""});
}

TEST(VocabularyTest, WhatItLacksIsSaid) {
  const std::string text = NewTestFolder("lacks") + "/text.txt";
  WriteText(text, std::string(100, 'a') + "\nbc\nd\u65e5\n");
  ExpectOneError(
      RunTrainer({"check", "--config=" + GoesOn(Windows(text)).File()}),
      {"train_data.path", text + ":3 has the character \"\u65e5\" (U+65E5)"});
  for (const std::string& model :
       {FirstRun() + "/final", FirstRun() + "/checkpoints/step-00000002"}) {
    ExpectOneError(
        RunTrainer({"generate", "--model=" + model, "--prompt=ab\u65e5\u672c"}),
        {"--prompt has the character \"\u65e5\" (U+65E5)"});
  }
  ExpectOneError(
      RunTrainer({"check", "--config=" + GoesOn(Windows(Some())).File(),
                  "--set", "train.sample_prompts={prompt: \"A\"}"}),
      {"train.sample_prompts", "has the character \"A\" (U+0041)"});
}

}  // namespace
}  // namespace capstan
