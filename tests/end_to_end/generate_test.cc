// SPDX-License-Identifier: Apache-2.0
//
// generate's prompts of files and of standard input, and the file it writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A model of bytes, made once.
std::string Texts() {
  static const auto* const folder =
      new std::string(MustTrain(RunText().Train("max_steps: 10")));
  return *folder;
}

// A model of conversations.
std::string Chats() {
  static const auto* const folder = new std::string(MustTrain(
      RunText()
          .Set("model",
               "[plugin/capstan.llama.Config] { vocab_size: 4096 hidden_size: "
               "32 intermediate_size: 88 num_hidden_layers: 2 "
               "num_attention_heads: 4 max_position_embeddings: 128 }")
          .Set("train_data",
               absl::StrCat("[plugin/capstan.chat.Config] { path: \"",
                            Runfile("datasets/samples/chats.jsonl"),
                            "\" tokenizer: \"",
                            Runfile("datasets/samples/tokenizer"),
                            "\" chat_template: \"chatml\" max_length: 96 }"))
          .Train("max_steps: 2")));
  return *folder;
}

TrainerResult Generate(const std::string& model,
                       const std::vector<std::string>& more,
                       const std::string& input = "") {
  TrainerOptions options;
  options.input = input;
  std::vector<std::string> args = {"generate", "--model=" + model,
                                   "--max_new_tokens=6", "--greedy"};
  args.insert(args.end(), more.begin(), more.end());
  return RunTrainer(args, options);
}

std::vector<nlohmann::json> Rows(const std::string& path) {
  std::vector<nlohmann::json> rows;
  const std::string text = ReadText(path);
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    rows.push_back(nlohmann::json::parse(line));
  }
  return rows;
}

TEST(GenerateInputTest, StandardInputIsAPromptALine) {
  const TrainerResult one = Generate(Texts(), {"--prompt=THE CAPTAIN"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  const TrainerResult other = Generate(Texts(), {"--prompt=And"});
  EXPECT_EQ(Generate(Texts(), {}, "THE CAPTAIN\n").out, one.out);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--input=-"}}) {
    const TrainerResult both =
        Generate(Texts(), more, "THE CAPTAIN\r\n\nAnd\n");
    EXPECT_EQ(both.exit_code, 0) << both.err;
    EXPECT_EQ(both.err, "");
    EXPECT_EQ(both.out, absl::StrCat(one.out, "\n", other.out));
  }
}

TEST(GenerateInputTest, RowsInRowsOut) {
  const std::string folder = NewTestFolder("rows");
  const std::string input = WriteText(folder + "/prompts.jsonl",
                                      "{\"prompt\": \"THE CAPTAIN\", \"id\": "
                                      "18446744073709551616}\n\n\"And\"\n");
  const std::string output = folder + "/texts.jsonl";
  const TrainerResult result =
      Generate(Texts(), {"--input=" + input, "--output=" + output});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("2 texts"));
  const std::vector<nlohmann::json> rows = Rows(output);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0]["prompt"], "THE CAPTAIN");
  EXPECT_EQ(rows[1]["prompt"], "And");
  // What --prompt shows behind the prompt.
  const std::string shown = Generate(Texts(), {"--prompt=And"}).out;
  EXPECT_EQ(absl::StrCat("And", rows[1]["text"].get<std::string>(), "\n"),
            shown);
  // Rows of standard input are recognised; one text of --prompt has a file.
  fs::remove(output);
  ASSERT_EQ(
      Generate(Texts(), {"--output=" + output}, ReadText(input)).exit_code, 0);
  EXPECT_EQ(Rows(output), rows);
  fs::remove(output);
  ASSERT_EQ(Generate(Texts(), {"--prompt=And", "--output=" + output}).exit_code,
            0);
  EXPECT_EQ(Rows(output)[0], rows[1]);
}

TEST(GenerateInputTest, SeveralTextsOfEachPrompt) {
  const std::string folder = NewTestFolder("sequences");
  const std::string input =
      WriteText(folder + "/prompts.jsonl", "\"THE CAPTAIN\"\n\"And\"\n");
  const auto sample = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model=" + Texts(),
                               "--max_new_tokens=6", "--top_k=8"});
    return RunTrainer(more);
  };
  const std::string output = folder + "/texts.jsonl";
  const TrainerResult result =
      sample({"--input=" + input, "--output=" + output, "--sequences=2",
              "--batch_size=3", "--seed=5"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("4 texts"));
  const std::vector<nlohmann::json> rows = Rows(output);
  ASSERT_EQ(rows.size(), 4);
  EXPECT_EQ(rows[1]["prompt"], "THE CAPTAIN");
  EXPECT_EQ(rows[2]["prompt"], "And");
  // Each with a seed of its own.
  EXPECT_NE(rows[2]["text"], rows[3]["text"]);
  EXPECT_EQ(absl::StrCat("And", rows[3]["text"].get<std::string>(), "\n"),
            sample({"--prompt=And", "--seed=8"}).out);
  const TrainerResult shown = sample({"--input=" + input, "--sequences=2"});
  EXPECT_EQ(sample({"--prompt=And", "--sequences=2", "--seed=2"}).out,
            shown.out.substr(shown.out.find("\nAnd") + 1));
}

TEST(GenerateInputTest, ConversationsAreAnswered) {
  const std::string folder = NewTestFolder("rows");
  const std::string messages =
      "[{\"role\": \"user\", \"content\": \"Hello!\"}]";
  const std::string input =
      WriteText(folder + "/prompts.jsonl",
                absl::StrCat("{\"messages\": ", messages,
                             "}\n{\"prompt\": ", messages, "}\n"));
  const std::string output = folder + "/texts.jsonl";
  const TrainerResult result =
      Generate(Chats(), {"--input=" + input, "--output=" + output});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::vector<nlohmann::json> rows = Rows(output);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0], rows[1]);
  EXPECT_EQ(rows[0]["prompt"], nlohmann::json::parse(messages));
  // As chat answers.
  TrainerOptions options;
  options.input = "Hello!\n";
  EXPECT_EQ(RunTrainer({"chat", "--model=" + Chats(), "--max_new_tokens=6",
                        "--greedy"},
                       options)
                .out,
            rows[0]["text"].get<std::string>() + "\n");
  EXPECT_THAT(Generate(Chats(), {"--input=" + input}).out,
              StartsWith("> Hello!\n"));
}

// The model's own settings, however it decodes by itself.
TEST(GenerateFlagsTest, OverrideTheModelsOwn) {
  const auto ids = [](const std::string& settings,
                      std::vector<std::string> flags) {
    const std::string model = CopyFolder(Texts() + "/final", "settings");
    WriteText(model + "/generation_config.json", settings);
    flags.insert(flags.begin(), {"generate", "--model=" + model,
                                 "--prompt_ids=1,2", "--max_new_tokens=12"});
    const TrainerResult result = RunTrainer(flags);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string likeliest = ids("{}", {"--greedy"});
  EXPECT_EQ(ids(R"({"do_sample": false})", {}), likeliest);
  for (const char* flag :
       {"--temperature=2", "--top_k=200", "--top_p=0.99", "--min_p=0.01"}) {
    const std::string drawn = ids("{}", {flag});
    EXPECT_NE(drawn, likeliest) << flag;
    EXPECT_EQ(ids(R"({"do_sample": false})", {flag}), drawn) << flag;
    EXPECT_EQ(ids(R"({"num_beams": 4})", {flag}), drawn) << flag;
  }
  EXPECT_EQ(ids(R"({"num_beams": 4})", {"--greedy"}), likeliest);
  EXPECT_EQ(ids(R"({"num_beams": 4})", {"--temperature=0"}), likeliest);
}

TEST(GenerateFlagsTest, WithoutEffectAreErrors) {
  const auto error = [](std::vector<std::string> flags,
                        const std::vector<std::string>& words) {
    flags.insert(flags.begin(), {"generate", "--model=" + Texts(),
                                 "--prompt=And", "--max_new_tokens=2"});
    ExpectOneError(RunTrainer(flags), words);
  };
  error({"--greedy", "--top_k=5"}, {"--top_k", "--greedy"});
  error({"--temperature=0", "--top_p=0.5"}, {"--top_p", "--temperature=0"});
  error({"--beams=4", "--temperature=0.7"}, {"--temperature", "--beams"});
  error({"--beams=4", "--greedy"}, {"--greedy", "--beams"});
  error({"--beams=1025"}, {"--beams", "at most 1024, is 1025"});
  error({"--stop", ""}, {"--stop", "is empty"});
  error({"--sequences=1000000001"}, {"--sequences", "at most 1000000000"});
  error({"--greedy", "--seed=3"}, {"--seed", "--greedy"});
  error({"--batch_size=4"}, {"--batch_size", "without --output"});
  error({"--template=nonsense"}, {"--template", "no prompt is one"});
}

TEST(GenerateFlagsTest, NumbersAreCheckedBeforeAnythingIsShown) {
  for (const auto& [flag, rule] :
       std::vector<std::pair<std::string, std::string>>{
           {"--temperature=-1", "--temperature: must be 0 or greater, is -1"},
           {"--top_k=-1", "--top_k: must be 0 or greater, is -1"},
           {"--top_p=2", "--top_p: must be greater than 0 and at most 1, is 2"},
           {"--min_p=2", "--min_p: must be from 0 to 1, is 2"},
           {"--repetition_penalty=0", "--repetition_penalty: must be greater"},
           {"--no_repeat_ngram_size=-1",
            "--no_repeat_ngram_size: must be 0"}}) {
    const TrainerResult result =
        RunTrainer({"generate", "--model=" + Texts(), "--prompt=And", flag});
    EXPECT_EQ(result.out, "") << flag;
    ExpectOneError(result, {rule, "[command/flag]"});
  }
}

// As of `serve`, though rotary positions would go on.
TEST(GenerateLengthTest, TextsEndAtTheModelsLastPosition) {
  const std::string model = CopyFolder(Chats() + "/final", "positions");
  // No end token ends them.
  WriteText(model + "/generation_config.json", R"({"min_new_tokens": 9999})");
  const std::string said = "(the text ends at the model's 128 positions)\n";
  const auto run = [&](std::vector<std::string> words,
                       const std::string& input = "") {
    words.insert(words.begin() + 1, "--model=" + model);
    TrainerOptions options;
    options.input = input;
    const TrainerResult result = RunTrainer(words, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result;
  };
  for (const char* const more : {"--seed=0", "--max_new_tokens=300"}) {
    const TrainerResult ids = run({"generate", "--prompt_ids=70,71", more});
    const std::vector<std::string> each = absl::StrSplit(ids.out, ',');
    EXPECT_EQ(each.size(), 129) << more;
    EXPECT_EQ(ids.err, said);
  }
  EXPECT_EQ(run({"generate", "--prompt_ids=70,71", "--max_new_tokens=126"}).err,
            "");
  EXPECT_EQ(run({"generate", "--prompt=And"}).err, said);
  const std::string folder = NewTestFolder("rows");
  EXPECT_EQ(
      run({"generate", "--output=" + folder + "/texts.jsonl"}, "And\nThen\n")
          .err,
      "note: 2 of them end at the model's 128 positions\n");
  // Its oldest turn makes room for the second.
  const TrainerResult chat = run({"chat"}, "Hello!\nAnd?\n");
  EXPECT_THAT(chat.err, StartsWith(said));
  EXPECT_THAT(chat.err, ::testing::EndsWith(said));
  EXPECT_GT(chat.err.size(), 2 * said.size());
  EXPECT_EQ(run({"chat", "--max_new_tokens=4"}, "Hello!\n").err, "");
}

// A name that the template doesn't have would be without effect.
TEST(GenerateInputTest, VariablesAreTheTemplates) {
  const std::string folder = NewTestFolder("variables");
  const auto input = [&](const std::string& more) {
    return "--input=" + WriteText(folder + "/rows.jsonl",
                                  "{\"messages\": [{\"role\": \"user\", "
                                  "\"content\": \"Hello!\"}]" +
                                      more + "}");
  };
  EXPECT_EQ(
      Generate(Chats(), {input(""), "--chat_template_kwargs={}"}).exit_code, 0);
  ExpectOneError(
      Generate(Chats(),
               {input(""), "--chat_template_kwargs={\"enable_thinkin\": 1}"}),
      {"--chat_template_kwargs", "sets \"enable_thinkin\"", "chatml"});
  ExpectOneError(Generate(Chats(), {input(""), "--chat_template_kwargs=x"}),
                 {"--chat_template_kwargs", "isn't a JSON object"});
  ExpectOneError(
      Generate(Chats(),
               {input(", \"chat_template_kwargs\": {\"enable_thinkin\": 1}")}),
      {"rows.jsonl:1", "chat_template_kwargs", "sets \"enable_thinkin\""});
  ExpectOneError(
      Generate(Chats(), {"--prompt=Hello!", "--chat_template_kwargs={}"}),
      {"--chat_template_kwargs", "no prompt is one", "--input"});
  TrainerOptions options;
  options.input = "Hello!\n";
  ExpectOneError(RunTrainer({"chat", "--model=" + Chats(),
                             "--chat_template_kwargs={\"enable_thinkin\": 1}"},
                            options),
                 {"--chat_template_kwargs", "sets \"enable_thinkin\""});
}

TEST(GenerateInputTest, WhatCantBeIsSaid) {
  const std::string folder = NewTestFolder("rows");
  const std::string output = WriteText(folder + "/there.jsonl", "mine\n");
  ExpectOneError(Generate(Texts(), {"--prompt=And", "--output=" + output}),
                 {"--output", output, "is there already"});
  EXPECT_EQ(ReadText(output), "mine\n");
  ExpectOneError(Generate(Texts(), {}),
                 {"--prompt=TEXT", "--input=FILE", "standard input"});
  ExpectOneError(Generate(Texts(), {"--prompt=a", "--input=-"}),
                 {"give one of --prompt=TEXT"});
  ExpectOneError(
      Generate(Texts(), {"--prompt_ids=1", "--output=" + folder + "/x"}),
      {"--output", "--prompt_ids"});
  ExpectOneError(Generate(Texts(), {"--prompt=a", "--length_penalty=2"}),
                 {"--length_penalty", "--beams"});
  ExpectOneError(Generate(Texts(), {"--input=/nowhere.jsonl"}),
                 {"/nowhere.jsonl"});
  struct Case {
    std::string rows;
    std::string words;
  };
  for (const Case& c :
       {Case{"\"a\"\n{\"prompt\": 3}\n", "rows.jsonl:2: must be"},
        Case{"{\"prompt\"", "rows.jsonl:1: isn't valid JSON"},
        Case{"{\"messages\": [{\"role\": \"user\"}]}", "\"content\""},
        Case{"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
             "{\"role\": \"assistant\", \"content\": \"b\"}]}",
             "rows.jsonl:1: the last message is the assistant's"},
        Case{"{\"prompt\": \"a\", \"tools\": [1]}", "rows.jsonl:1: has tools"},
        Case{"\n", "no prompt in"},
        // A model without a chat template.
        Case{"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
             "--model=" + Texts()},
        Case{absl::StrCat("\"a\"\n\"", std::string(200, 'b'), "\""),
             "rows.jsonl:2 has 200 tokens, the model only 128"}}) {
    const std::string input = WriteText(folder + "/rows.jsonl", c.rows);
    const std::string fresh = folder + "/fresh.jsonl";
    ExpectOneError(Generate(Texts(), {"--input=" + input, "--output=" + fresh}),
                   {c.words});
    EXPECT_FALSE(fs::exists(fresh));
  }
}

}  // namespace
}  // namespace capstan
