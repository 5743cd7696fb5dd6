// SPDX-License-Identifier: Apache-2.0
//
// Talking with a model in the terminal, where the terminal is a file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

// A model that has seen a few conversations.
std::string Trained(const std::string& adapter = "") {
  return MustTrain(
      RunText()
          .Set("model",
               "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: "
               "32 intermediate_size: 88 num_hidden_layers: 2 "
               "num_attention_heads: 4 num_key_value_heads: 2 "
               "max_position_embeddings: 128 }")
          .Set("adapter", adapter)
          .Set("train_data",
               absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                            Runfile("datasets/samples/chats.jsonl"),
                            "\" tokenizer: \"",
                            Runfile("datasets/samples/tokenizer"),
                            "\" chat_template: \"chatml\" max_length: 96 }"))
          .Train("max_steps: 4"));
}

// What `trainer chat` answers to the lines of `input`.
TrainerResult Chat(const std::string& input,
                   const std::vector<std::string>& args) {
  TrainerOptions options;
  options.input = input;
  std::vector<std::string> words = {"chat"};
  words.insert(words.end(), args.begin(), args.end());
  return RunTrainer(words, options);
}

TEST(ChatCommandTest, AnswersEachLine) {
  const std::string folder = Trained();
  const std::vector<std::string> args = {"--model=" + folder,
                                         "--max_new_tokens=6", "--seed=3"};
  const TrainerResult one = Chat("Hello!\n", args);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.err, "");
  EXPECT_FALSE(one.out.empty());
  const TrainerResult two = Chat("Hello!\n\nAnd now?\n", args);
  ASSERT_EQ(two.exit_code, 0) << two.err;
  // The first answer is the same, and a second follows.
  EXPECT_EQ(two.out.substr(0, one.out.size()), one.out);
  EXPECT_GT(two.out.size(), one.out.size());
  // What it begins with matters.
  std::vector<std::string> with_system = args;
  with_system.push_back("--system=You are a pirate.");
  EXPECT_NE(Chat("Hello!\n", with_system).out, one.out);
  EXPECT_EQ(Chat("", args).exit_code, 0);
  // Before the first question.
  ExpectOneError(
      Chat("Hello!\n",
           {"--model=" + folder,
            "--tools=" + WriteText(NewTestFolder("tools") + "/t", "{}\n{}")}),
      {"--tools", "isn't a JSON list"});
}

TEST(ChatCommandTest, ForgetsWhatNoLongerFits) {
  const std::string folder = Trained();
  std::string input;
  for (int i = 0; i < 8; ++i) input += "one two three four five six seven\n";
  const TrainerResult result =
      Chat(input, {"--model=" + folder, "--max_new_tokens=4"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("its oldest turns are forgotten"));
  std::string line;
  for (int i = 0; i < 200; ++i) line += "word ";
  const TrainerResult long_one =
      Chat(line + "\nHello!\n", {"--model=" + folder, "--max_new_tokens=4"});
  EXPECT_EQ(long_one.exit_code, 0) << long_one.err;
  EXPECT_THAT(long_one.err, HasSubstr("the model has 128 positions"));
  EXPECT_FALSE(long_one.out.empty());
}

TEST(ChatCommandTest, WhatIsMissingIsSaid) {
  const std::string golden = Runfile("tests/golden/testdata/llama");
  ExpectOneError(Chat("Hello!\n", {"--model=" + golden}),
                 {golden, "has no tokenizer"});
  const std::string bytes = MustTrain(RunText().Train("max_steps: 1"));
  ExpectOneError(Chat("Hello!\n", {"--model=" + bytes}), {bytes, "--template"});
  ExpectOneError(Chat("Hello!\n", {"--model=" + bytes, "--template=nonsense"}),
                 {"nonsense", "chatml"});
}

}  // namespace
}  // namespace capstan
